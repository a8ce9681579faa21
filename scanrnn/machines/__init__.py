"""Machines: data sheets of processors, and how to find the right one."""

from scanrnn.machines._machine import Machine as Machine
from scanrnn.machines._table import MACHINES as MACHINES
from scanrnn.machines._table import cores_here as cores_here
from scanrnn.machines._table import machine_for as machine_for
from scanrnn.machines._table import machine_named as machine_named
from scanrnn.machines._table import machine_of as machine_of
