"""The server: it has no data, and needs the model only for its size and start."""

from cobo.flower import server_app
from digits_parties.task import make_model

app = server_app(make_model)
