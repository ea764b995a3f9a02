"""Layers and architectures, one file each; every one works alone as an ordinary torch module."""

from nnarena.kernels.linear import Projection
from nnarena.nn.attention_split import AttentionSplit
from nnarena.nn.attention_wise import AttentionWise1d, AttentionWise2d
from nnarena.nn.attention_wise_net import AttentionWiseNet
from nnarena.nn.bidirectional import Bidirectional
from nnarena.nn.control_vgg import ControlNet
from nnarena.nn.conv1d import ConvNet1d
from nnarena.nn.cooccurrence import Cooccurrence
from nnarena.nn.ct_gru import CTGRU
from nnarena.nn.ct_rnn import CTRNN
from nnarena.nn.dnc import DNC
from nnarena.nn.elman import Elman
from nnarena.nn.exp_unitary_rnn import ExpUnitaryRNN
from nnarena.nn.gru import GRU
from nnarena.nn.head import SequenceModel
from nnarena.nn.jordan import Jordan
from nnarena.nn.lsa import LSA, TfIdf
from nnarena.nn.lstm import LSTM
from nnarena.nn.ltc import LTC
from nnarena.nn.memory_cell import MemoryCell
from nnarena.nn.memory_transformer import MemoryAugmentedTransformer
from nnarena.nn.ode_lstm import ODELSTM
from nnarena.nn.one_hot import OneHot
from nnarena.nn.ppmi import PPMI
from nnarena.nn.recurrent import Recurrent
from nnarena.nn.recurrent_attention import RecurrentAttentionTransformer, RecurrentAugmentedTransformer
from nnarena.nn.stacked import Stacked
from nnarena.nn.transformer import Transformer
from nnarena.nn.unitary_ncp import UnitaryNCP
from nnarena.nn.unitary_rnn import UnitaryRNN
from nnarena.nn.wirings import NCP, AutoNCP, FullyConnected, Random, Wiring
from nnarena.nn.word2vec import FullSoftmax, NegativeSampling, SkipGram
from nnarena.nn.words import WordVectors

__all__ = [
    "CTGRU",
    "CTRNN",
    "DNC",
    "GRU",
    "LSA",
    "LSTM",
    "LTC",
    "NCP",
    "ODELSTM",
    "PPMI",
    "AttentionSplit",
    "AttentionWise1d",
    "AttentionWise2d",
    "AttentionWiseNet",
    "AutoNCP",
    "Bidirectional",
    "ControlNet",
    "ConvNet1d",
    "Cooccurrence",
    "Elman",
    "ExpUnitaryRNN",
    "FullSoftmax",
    "FullyConnected",
    "Jordan",
    "MemoryAugmentedTransformer",
    "MemoryCell",
    "NegativeSampling",
    "OneHot",
    "Projection",
    "Random",
    "Recurrent",
    "RecurrentAttentionTransformer",
    "RecurrentAugmentedTransformer",
    "SequenceModel",
    "SkipGram",
    "Stacked",
    "TfIdf",
    "Transformer",
    "UnitaryNCP",
    "UnitaryRNN",
    "Wiring",
    "WordVectors",
]
