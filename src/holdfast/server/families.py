"""All families of routes. A folder with routes adds its family here, and only here."""

from holdfast.server.api.operations import API
from holdfast.server.basics import BASICS
from holdfast.server.callbacks import CALLBACKS
from holdfast.server.dashboard.routes import DASHBOARD
from holdfast.server.ojs.routes import OJS
from holdfast.server.routes import Family

FAMILIES: tuple[Family, ...] = (DASHBOARD, BASICS, API, OJS, CALLBACKS)
