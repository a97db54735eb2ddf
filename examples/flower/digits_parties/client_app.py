"""A party."""

from cobo.flower import client_app
from digits_parties.task import load_client, make_model

app = client_app(load_client, model=make_model)
