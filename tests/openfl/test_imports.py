"""Without OpenFL, the error says how to get it."""

import subprocess
import sys


def test_without_openfl_the_error_says_what_to_install():
    code = "import sys; sys.modules['openfl'] = None\ntry:\n    import klms.openfl\nexcept ImportError as e: print(e)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pip install '.[openfl]'" in shown
