"""Two tiny models that TensorFlow 2.21 has saved: the sum and the difference of two inputs of FP32, [-1, 4] each.

They are here as bytes, because making them needs TensorFlow. The SavedModel has the signatures `serving_default` (FIRST
and SECOND to SUM and DIFFERENCE) and `other` (FIRST to DIFFERENCE); the graph has the nodes a, b, s and d.
"""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

_SAVED_MODEL = (
    "c-pm*%Syvg5Qdq?Q^N$jOmP$3SOw)kN)l8`S8AI=7glMi8yDfE=hzm43Aq$}6Tvrd<Ky@^Y7}=3SixBh%=celbf71OR+D8aT_|36"
    "TdvcxU32lhSn0&EPOPaoZabl4yQj8n1HIKyA_y|BBQa64IFc&myU4PcNE9_X+hpkPKLb?L*SLX9=8vD(nhpFAH-fmxlOhkkBpL1C"
    "GF6!p{(s5^LPqRd%3Ie2VM55)5yq=|oFPck{386TLsQdV8vGS-v;4&TVH!wvFN!FqXTSrj`(F2I*dr6Quw!q5xunBBvi@M?k4s2Y"
    "K(vRNe{)$PSru}G*c<fw-pCtvy^@p_qzMVXLl);VmD1>U`Ky?J08XdYMg"
)
_GRAPH_DEF = (
    "c-rH#=3-0~;tt43Ois<n&q+xw(vsm~EzU?RNEH&c5)|U*_zwe&LQEViTHIW$DJ7LaStbKUE}-TlvNcO`F%}E4I;NzA8A&lFN--vB"
    "v2!tofThH_7*m9pgG-apB$SvrRtW<DO<^#G"
)
SAVED_MODEL = zlib.decompress(base64.b85decode(_SAVED_MODEL))
GRAPH_DEF = zlib.decompress(base64.b85decode(_GRAPH_DEF))


def write_saved_model(version: Path) -> None:
    folder = version / "model.savedmodel"
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(SAVED_MODEL)


def write_graph(version: Path) -> None:
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.graphdef").write_bytes(GRAPH_DEF)
