"""Layers and architectures, one file each; every one works alone as an ordinary torch module."""

from nnarena.nn.gru import GRU
from nnarena.nn.head import SequenceModel
from nnarena.nn.lstm import LSTM
from nnarena.nn.recurrent import Recurrent
from nnarena.nn.transformer import Transformer

__all__ = ["GRU", "LSTM", "Recurrent", "SequenceModel", "Transformer"]
