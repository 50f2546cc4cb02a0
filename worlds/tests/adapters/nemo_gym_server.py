"""NeMo Gym's own example of a server with a session, by an interpreter that has `nemo_gym`, on the port that is given.

It is served as NeMo Gym would, without the head server that joins several.
"""

import sys

import uvicorn
from nemo_gym.server_utils import ServerClient
from resources_servers.example_session_state_mgmt.app import (
    StatefulCounterResourcesServer,
    StatefulCounterResourcesServerConfig,
)

config = StatefulCounterResourcesServerConfig(
    host="127.0.0.1", port=int(sys.argv[1]), entrypoint="app.py", name="counter"
)
server = StatefulCounterResourcesServer(config=config, server_client=ServerClient.model_construct())
uvicorn.run(server.setup_webserver(), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
