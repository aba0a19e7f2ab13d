"""The address of links to join: a page for browsers, and the file by which Android lets an app open them instead."""

import base64
from hashlib import sha256

from aiohttp import web

from fedlens_server.enrolment_link import JOIN
from fedlens_server.http.service import SERVICE

ASSET_LINKS = "/.well-known/assetlinks.json"
_STYLE = "body{font:1.1em/1.5 sans-serif;max-width:34em;margin:2em auto;padding:0 1em;color-scheme:light dark}"
_PAGE = f"""\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="robots" content="noindex">
<title>An invitation</title>
<style>{_STYLE}</style>
<h1>An invitation</h1>
<p>This link invites an app on your phone to train a model together with others. Your photos stay on the phone.</p>
<p>If you have the app: open it, and scan the QR code or paste this link there. If not, ask whoever sent it to you.</p>
<p>Whoever has the link can join with it, so do not pass it on. This page has not read what is behind the # in it.</p>
<div lang="de">
<h1>Eine Einladung</h1>
<p>Dieser Link lädt eine App auf Ihrem Telefon ein, gemeinsam mit anderen ein Modell zu trainieren. Ihre Fotos bleiben
auf dem Telefon.</p>
<p>Wenn Sie die App haben: Öffnen Sie sie, und scannen Sie dort den QR-Code, oder fügen Sie diesen Link ein. Wenn nicht,
fragen Sie, wer Ihnen den Link geschickt hat.</p>
<p>Wer den Link hat, kann damit beitreten; geben Sie ihn nicht weiter. Was darin hinter dem # steht, hat diese Seite
nicht gelesen.</p>
</div>
"""
_HASH = base64.b64encode(sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def routes() -> list[web.RouteDef]:
    """Both addresses, which need no credential."""
    return [web.get(JOIN, show), web.get(ASSET_LINKS, asset_links)]


async def show(_: web.Request) -> web.Response:
    """`GET /join`: what the link is for, in a browser of a phone without the app; it runs no script."""
    return web.Response(text=_PAGE, content_type="text/html", headers=_HEADERS)


async def asset_links(request: web.Request) -> web.Response:
    """`GET /.well-known/assetlinks.json`: the apps of `server.apps`, as Android reads them when one is installed."""
    return web.json_response(
        [
            {
                "relation": ["delegate_permission/common.handle_all_urls"],
                "target": {
                    "namespace": "android_app",
                    "package_name": app.package,
                    "sha256_cert_fingerprints": app.certificates,
                },
            }
            for app in request.app[SERVICE].config.server.apps
        ]
    )
