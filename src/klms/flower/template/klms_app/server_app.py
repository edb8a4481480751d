"""The server, which resumes the run in `run-folder` if there is one."""

from klms.flower import server_app

app = server_app()
