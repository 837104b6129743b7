"""The scenes, in the order in which they start: each has a service of its own."""

from load.observe.scene import Scene
from load.observe.scenes.backlog import Backlog
from load.observe.scenes.fatal import Fatal
from load.observe.scenes.input import Input
from load.observe.scenes.outages import Outages

SCENES: tuple[type[Scene], ...] = (Fatal, Outages, Input, Backlog)
