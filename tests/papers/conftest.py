"""What the tests of the papers' tables share."""
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
