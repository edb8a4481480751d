"""The server, which resumes the run in `run-folder` if there is one."""

from klms.flower import server_app

from .task import model, test_data

app = server_app(model=model, test=test_data)
