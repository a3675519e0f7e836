# Opens folders of compressed-tensors with transformers and writes, for each, the weights that
# it computes with to weights.safetensors in the folder.
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

for folder in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, quantization_config=CompressedTensorsConfig(run_compressed=False)
    )
    with torch.no_grad():
        model(torch.arange(5, 12).unsqueeze(0))  # matrices are made plain by the first pass at the latest
    tied = model.config.tie_word_embeddings
    weights = {
        name: x.detach().float().contiguous().clone()
        for name, x in model.state_dict().items()
        if x.dtype.is_floating_point and not (tied and name == "lm_head.weight")
    }
    save_file(weights, f"{folder}/weights.safetensors")
