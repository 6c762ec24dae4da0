"""A Django site with Holdfast's API and dashboard under /holdfast. A worker beside it runs the jobs."""

import asyncio

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast import App, step
from holdfast.mounting import server_for

app = App()  # $HOLDFAST_URL, or holdfast.db in the working directory: the same for web and worker


@step
async def clip(number: int) -> str:
    await asyncio.sleep(0.2)  # for example, a call to a model
    return f"clip {number}"


@app.job(stages=[clip])
async def make_video(clips: int) -> list[str]:
    return list(await clip.map(range(clips)))


@csrf_exempt
async def order(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"id": (await make_video.submit(int(request.GET["clips"]))).id}, status=202)


# In a project, these two are settings.py and urls.py, and the rest of this file is asgi.py.
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["localhost", "127.0.0.1"])
urlpatterns = [path("videos", order)]

web = Starlette(routes=[Mount("/holdfast", server_for(app)), Mount("/", get_asgi_application())])
