"""Decode greedily in another engine, OpenVINO or llama.cpp, as a process that answers requests.

    python peer.py openvino FOLDER fp32 1
    python peer.py llama.cpp FILE.gguf int8 1

The arguments are engine, model, number format and threads. Each line of standard input is a request, JSON with
`prompts` (token ids per row) and `new_tokens`; each line of standard output is the list of answers: token ids
(OpenVINO) or texts (llama.cpp). No end-of-sequence token ends an answer.

The engines need other versions of packages than this project, so they have an environment of their own:

    python -m venv peers
    peers/bin/pip install torch==2.13.0 transformers==5.5.4 optimum-intel==2.2.0 openvino==2026.4.1
    peers/bin/pip install xllamacpp==2026.10.11549 gguf==0.19.0

If torch is its build for CPUs alone, remove torchvision, which optimum-intel installs and does not need here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROWS, CONTEXT = 8, 512
Decode = Callable[[list[list[int]], int], list[Any]]


def openvino(model: str, number_format: str, threads: int, folder: Path) -> Decode:
    """Return OpenVINO's decoding of a checkpoint in transformers' format, which optimum-intel exports first."""
    import torch
    from optimum.intel import OVModelForCausalLM, OVModelForSeq2SeqLM
    from transformers import AutoConfig

    precision = {"fp32": "f32", "bf16": "bf16"}[number_format]
    options = {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision, "INFERENCE_NUM_THREADS": threads}
    has_encoder = AutoConfig.from_pretrained(model).is_encoder_decoder
    model_class = OVModelForSeq2SeqLM if has_encoder else OVModelForCausalLM
    exported = model_class.from_pretrained(model, export=True, ov_config=options)
    exported.generation_config.eos_token_id = None

    def decode(prompts: list[list[int]], new_tokens: int) -> list[Any]:
        ids = torch.tensor(prompts)
        mask = torch.ones_like(ids)
        output = exported.generate(ids, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False)
        return output[:, -new_tokens:].tolist()

    return decode


def llama_cpp(model: str, number_format: str, threads: int, folder: Path) -> Decode:
    """Return llama.cpp's decoding of a GGUF file, after its weights were converted to a number format."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(converted(model, number_format, folder))
    params.n_parallel, params.n_ctx = ROWS, ROWS * CONTEXT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server, pool = xllamacpp.Server(params), ThreadPoolExecutor(ROWS)

    def decode(prompts: list[list[int]], new_tokens: int) -> list[Any]:
        options = {"n_predict": new_tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        requests = [{**options, "prompt": prompt} for prompt in prompts]
        return [answer["choices"][0]["text"] for answer in pool.map(server.handle_completions, requests)]

    return decode


def converted(source: str, number_format: str, folder: Path) -> Path:
    """Write a copy of a GGUF file whose matrices have a number format, and return its path."""
    import gguf
    import numpy as np
    from gguf.quants import dequantize, quantize

    reader, path = gguf.GGUFReader(source), folder / f"{number_format}.gguf"
    name = {"fp32": "F32", "bf16": "BF16", "int8": "Q8_0"}[number_format]
    kind, file_type = (
        gguf.GGMLQuantizationType[name],
        gguf.LlamaFileType[f"{'ALL' if name == 'F32' else 'MOSTLY'}_{name}"],
    )
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in ("general.architecture", "general.file_type"):
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if is_array else None)
    writer.add_file_type(file_type)
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim > 1:
            writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def main() -> None:
    """Answer requests until standard input ends."""
    engine, model, number_format, threads = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engines print to standard output
    with TemporaryDirectory() as folder:
        start = {"openvino": openvino, "llama.cpp": llama_cpp}[engine]
        decode = start(model, number_format, int(threads), Path(folder))
        for line in sys.stdin:
            print(json.dumps(decode(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
