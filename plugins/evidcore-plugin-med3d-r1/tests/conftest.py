from evidcore_testing.fixtures import torchrun as torchrun
from evidcore_testing.fixtures import written as written
