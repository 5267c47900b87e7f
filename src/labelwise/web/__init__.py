"""Web: a page and an API that tag, search and explain; the extra ``[serve]`` brings its parts."""

from labelwise.web.app import create_app
from labelwise.web.labelling import create_labelling_app
from labelwise.web.serving import serve
from labelwise.web.settings import ServeSettings

__all__ = ["ServeSettings", "create_app", "create_labelling_app", "serve"]
