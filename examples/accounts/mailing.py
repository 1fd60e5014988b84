"""A stand-in for the mailing provider of the accounts example: it takes every message."""

import argparse

from aiohttp import web


async def take(_request: web.Request) -> web.Response:
    """Take a message."""
    return web.json_response({"accepted": True}, status=202)


async def healthz(_request: web.Request) -> web.Response:
    """Say that it serves."""
    return web.Response(text="ok")


def application() -> web.Application:
    """The provider."""
    made = web.Application()
    made.add_routes([web.post("/messages", take), web.get("/healthz", healthz)])
    return made


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--port", type=int, required=True)
    web.run_app(application(), host="127.0.0.1", port=arguments.parse_args().port, print=None)
