import sys
from pathlib import Path

from evidcore_testing.fixtures import language_folder, volume_cases

sys.path.insert(0, str(Path(__file__).parent))  # mutants
cases = volume_cases(4)
language = language_folder
