"""cobo over Flower, for parties that really are apart: each keeps its data and its personal model (docs/flower.md).

In a Flower project of your own:

    app = cobo.flower.server_app(make_model)                          # server_app.py
    app = cobo.flower.client_app(load_client, model=make_model)       # client_app.py
"""

from cobo.errors import ConfigError

try:
    from cobo.flower.apps import client_app, server_app
except ImportError as error:  # there is none, or one that does not have what is needed
    raise ConfigError(f"{error}: Flower 1.41 is an extra of cobo; in its clone: pip install '.[flower]'") from None

__all__ = ["client_app", "server_app"]
