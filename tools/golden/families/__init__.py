"""The model families that have goldens. A new one is a file here and a row of FAMILIES."""
from .family import Family
from .qwen3_5_moe import QWEN3_5_MOE
from .qwen3_moe import QWEN3_MOE
from .qwen3_next import QWEN3_NEXT

FAMILIES: dict[str, Family] = {
    family.name: family for family in (QWEN3_MOE, QWEN3_NEXT, QWEN3_5_MOE)
}
