"""`advise`: NVIDIA's checklist for the sizes of recurrent layers, as a function."""

from scanrnn._advise.advice import Advice as Advice
from scanrnn._advise.advice import advise as advise
