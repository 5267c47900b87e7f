"""Web: a page and an API that tag, search and explain; the extra ``[serve]`` brings its parts."""

from labelwise.server.app import create_app
from labelwise.server.labelling import create_audit_app, create_labelling_app
from labelwise.server.serving import serve
from labelwise.server.settings import ServeSettings

__all__ = ["ServeSettings", "create_app", "create_audit_app", "create_labelling_app", "serve"]
