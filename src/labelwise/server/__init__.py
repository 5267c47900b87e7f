"""Web: a page and an API that tag, search and explain; the extra ``[serve]`` brings its parts."""

from typing import TYPE_CHECKING

from labelwise.base.lazy import imported_later

if TYPE_CHECKING:
    from labelwise.server.app import create_app
    from labelwise.server.labelling import create_audit_app, create_labelling_app
    from labelwise.server.serving import serve
    from labelwise.server.settings import ServeSettings

__all__ = ["ServeSettings", "create_app", "create_audit_app", "create_labelling_app", "serve"]

if not TYPE_CHECKING:  # else a checker would believe in any name
    __getattr__ = imported_later(
        __name__,
        {
            "app": ("create_app",),
            "labelling": ("create_audit_app", "create_labelling_app"),
            "serving": ("serve",),
            "settings": ("ServeSettings",),
        },
    )
