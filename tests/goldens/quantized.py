#!/usr/bin/env python3
"""Makes small quantised matrices and notes what the libraries that define them decode:
quantized.py [--out FILE] [CASE...]

Cases that are not named stay as they are in FILE (data/quantized.safetensors); each needs its own library
(LIBRARIES) beside torch, those who read the goldens need none. FILE holds the tensors as CASE/NAME; its
metadata, per case, quantization_config, the name and shape of the matrix, the versions of the libraries, and
the SHA-256 of its f32 numbers, zeros without sign: transformers' MXFP4 knows -0, GGUF's, whose layout rows
have here, does not.
"""
import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import zlib

import torch
from safetensors import safe_open
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARIES = {"gptq": "auto-gptq", "awq": "autoawq", "fp8": "compressed-tensors", "nf4": "bitsandbytes",
             "mxfp4": "transformers", "packed": "compressed-tensors", "nvfp4": "compressed-tensors",
             "modelopt": "nvidia-modelopt"}  # by the first word of a case
NAME = "model.layers.0.mlp.up_proj"


def words(*shape):
    return torch.randint(-2**31, 2**31 - 1, shape, dtype=torch.int64).to(torch.int32)


def halves(*shape):
    """Scales of f16, small ones and subnormals among them."""
    x = torch.rand(*shape) * 0.02
    x[0, ::7] *= 2.0**-12
    return x.half()


def alone(package, path):
    """A module without its package, which wants others of other versions."""
    root = os.path.dirname(importlib.util.find_spec(package).origin)
    spec = importlib.util.spec_from_file_location(package + "_part", os.path.join(root, path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gptq(group, n=40, k=256, bits=4, ordered=False):
    QuantLinear = alone("auto_gptq", f"nn_modules/qlinear/qlinear_cuda{'' if ordered else '_old'}.py").QuantLinear
    group = group if group > 0 else k
    tensors = {"qweight": words(k * bits // 32, n), "qzeros": words(k // group, n * bits // 32),
               "scales": halves(k // group, n), "g_idx": torch.arange(k, dtype=torch.int32) // group}
    if ordered:
        tensors["g_idx"] = tensors["g_idx"][torch.randperm(k)]
        tensors["qzeros"] &= 0x77777777  # this class, unlike the other one, has zeros of 16
    layer = QuantLinear(bits, group, k, n, False)
    layer.qweight, layer.qzeros, layer.scales = tensors["qweight"], tensors["qzeros"], tensors["scales"].float()
    layer.g_idx = tensors["g_idx"]
    want = layer(torch.eye(k)).T  # a product with 1 and sums with 0 are exact
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": ordered, "sym": False}
    return config, {f"{NAME}.{key}": x for key, x in tensors.items()}, f"{NAME}.weight", want


def awq(group, n=48, k=256):
    packing = alone("awq", "utils/packing_utils.py")
    tensors = {"qweight": words(k, n // 8), "qzeros": words(k // group, n // 8), "scales": halves(k // group, n)}
    want = packing.dequantize_gemm(tensors["qweight"], tensors["qzeros"], tensors["scales"].float(), 4, group).T
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    return config, {f"{NAME}.{key}": x for key, x in tensors.items()}, f"{NAME}.weight", want


def e4m3(n, k):
    bits = torch.randint(0, 256, (n, k), dtype=torch.int64)
    bits[bits & 127 == 127] -= 1  # NaN
    return bits.to(torch.uint8).view(torch.float8_e4m3fn)


def fp8(strategy, scale, n=33, k=256):
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    weight = e4m3(n, k)
    args = QuantizationArgs(num_bits=8, type="float", strategy=strategy, symmetric=True)
    want = dequantize(weight, scale.float(), None, args, torch.float32)
    config = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
              "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": strategy},
                                            "input_activations": None, "targets": ["Linear"]}},
              "quantization_status": "compressed"}
    return config, {f"{NAME}.weight": weight, f"{NAME}.weight_scale": scale}, f"{NAME}.weight", want


def compressed(form, tensors, **weights):
    """A matrix of compressed-tensors; its scales as f32, so that nothing is rounded to less."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    wide = {key: x.float() if key == "weight_scale" and x.dtype.itemsize == 2 else x for key, x in tensors.items()}
    want = BaseCompressor.load_from_registry(form).decompress(wide, scheme)["weight"]
    config = {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head", "re:.*self_attn.*"],
              "config_groups": {"group_0": {"weights": weights, "input_activations": None, "targets": ["Linear"]}},
              "quantization_status": "compressed"}
    return config, {f"{NAME}.{key}": x for key, x in tensors.items()}, f"{NAME}.weight", want


def packed(bits, group, scales=torch.bfloat16, symmetric=True, n=40, k=384):
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    codes, groups = torch.randint(-2**(bits - 1), 2**(bits - 1), (n, k), dtype=torch.int8), k // group if group else 1
    scale = torch.rand(n, groups) * 0.02
    scale[::5] *= 2.0**(-20 if scales == torch.bfloat16 else -9)
    tensors = {"weight_packed": pack_to_int32(codes, bits), "weight_scale": scale.to(scales),
               "weight_shape": torch.tensor([n, k])}
    if not symmetric:
        zeros = torch.randint(-2**(bits - 1), 2**(bits - 1), (n, groups), dtype=torch.int8)
        tensors["weight_zero_point"] = pack_to_int32(zeros, bits, packed_dim=0).contiguous()
        tensors["weight_scale"] = (torch.rand(n, groups) * 0.02 + 1e-4).to(scales)
    return compressed("pack-quantized", tensors, num_bits=bits, type="int", symmetric=symmetric,
                      **({"strategy": "group", "group_size": group} if group else {"strategy": "channel"}))


def int8(strategy, scale, zeros=None, n=40, k=256):
    tensors = {"weight": torch.randint(-128, 128, (n, k), dtype=torch.int8), "weight_scale": scale}
    if zeros is not None:
        tensors["weight_zero_point"] = zeros
    return compressed("int-quantized", tensors, num_bits=8, type="int", symmetric=zeros is None, strategy=strategy)


def fp4(scales, n=40, k=384, factor=True):
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8)
    tensors = {"weight_packed": codes, "weight_scale": scales(n, k)}
    if not factor:
        return compressed("mxfp4-pack-quantized", tensors, num_bits=4, type="float", strategy="group", group_size=32)
    tensors["weight_global_scale"] = torch.tensor([1234.567])
    config, named, name, _ = compressed("nvfp4-pack-quantized", tensors, num_bits=4, type="float", strategy="tensor_group", group_size=16)
    args = QuantizationArgs(**config["config_groups"]["group_0"]["weights"])  # decompress() rounds to bf16: its step in f32
    codes = unpack_fp4_from_uint8(codes, n, k, torch.float32)
    want = dequantize(codes, tensors["weight_scale"].float(), None, args, torch.float32, tensors["weight_global_scale"])
    return config, named, name, want


def modelopt(n=40, k=384):
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    codes, scale, factor = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8), e4m3(n, k // 16), torch.tensor(0.0012345)
    want = NVFP4QTensor(torch.Size((n, k)), torch.float32, codes).dequantize(scale=scale, double_scale=factor, block_sizes={-1: 16})
    tensors = {"weight": codes, "weight_scale": scale, "weight_scale_2": factor, "input_scale": torch.tensor(0.01)}
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"], "producer": {"name": "modelopt"}}
    return config, {f"{NAME}.{key}": x for key, x in tensors.items()}, f"{NAME}.weight", want


def fp8_blocks(n=132, k=320):
    from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

    weight, scale = e4m3(n, k), torch.rand(-(-n // 128), -(-k // 128)) * 0.01
    want = _dequantize_fp8_weight(weight, scale, [128, 128], torch.float32)
    config = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    return config, {f"{NAME}.weight": weight, f"{NAME}.weight_scale_inv": scale}, f"{NAME}.weight", want


def nf4(nested, n=72, k=256):
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    packed, state = quantize_4bit(torch.randn(n, k) * torch.rand(n, 1), blocksize=64, quant_type="nf4",
                                  compress_statistics=nested)
    want = dequantize_4bit(packed, state)
    tensors = {f"{NAME}.weight": packed}
    tensors.update({f"{NAME}.weight.{key}": x for key, x in state.as_dict(packed=True).items()})
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False,
              "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": nested,
              "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8"}
    return config, tensors, f"{NAME}.weight", want


def mxfp4(n_experts=2, n=24, k=96):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.randint(0, 256, (n_experts, n, k // 32, 16), dtype=torch.uint8)
    scales = torch.randint(1, 250, (n_experts, n, k // 32), dtype=torch.uint8)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    want = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).transpose(1, 2)
    return {"quant_method": "mxfp4"}, {f"{name}_blocks": blocks, f"{name}_scales": scales}, name, want


CASES = {
    "gptq-32": lambda: gptq(32),
    "gptq-64": lambda: gptq(64),
    "gptq-128": lambda: gptq(128),
    "gptq-row": lambda: gptq(-1, k=384),
    "gptq-8bit-32": lambda: gptq(32, bits=8),
    "gptq-8bit-128": lambda: gptq(128, bits=8),
    "gptq-ordered": lambda: gptq(64, ordered=True),
    "gptq-ordered-8bit": lambda: gptq(128, bits=8, ordered=True),
    "awq-32": lambda: awq(32),
    "awq-128": lambda: awq(128),
    "fp8-tensor": lambda: fp8("tensor", torch.tensor([0.0123])),
    "fp8-channel": lambda: fp8("channel", (torch.rand(33, 1) * 0.01).bfloat16()),
    "fp8-blocks": fp8_blocks,
    "nf4": lambda: nf4(False),
    "nf4-nested": lambda: nf4(True),
    "mxfp4": mxfp4,
    "packed-32": lambda: packed(4, 32),
    "packed-128": lambda: packed(4, 128),
    "packed-row": lambda: packed(4, 0),
    "packed-8bit-32": lambda: packed(8, 32),
    "packed-8bit-row": lambda: packed(8, 0, torch.float16),
    "packed-8bit-zeros": lambda: packed(8, 128, symmetric=False, n=42),
    "packed-int8": lambda: int8("channel", (torch.rand(40, 1) * 0.01).bfloat16()),
    "packed-int8-tensor": lambda: int8("tensor", torch.tensor([0.0123])),
    "packed-int8-zeros": lambda: int8("channel", torch.rand(40, 1) * 0.01, torch.randint(-128, 128, (40, 1), dtype=torch.int8)),
    "packed-f16-32": lambda: packed(4, 32, torch.float16),
    "packed-f16-128": lambda: packed(4, 128, torch.float16),
    "packed-zeros-32": lambda: packed(4, 32, symmetric=False),
    "nvfp4": lambda: fp4(lambda n, k: e4m3(n, k // 16)),
    "packed-mxfp4": lambda: fp4(lambda n, k: torch.randint(100, 140, (n, k // 32), dtype=torch.uint8), factor=False),
    "modelopt": modelopt,
    "packed-zeros-128": lambda: packed(4, 128, torch.float16, symmetric=False, n=44),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=os.path.join(HERE, "data", "quantized.safetensors"))
    parser.add_argument("cases", nargs="*", metavar="CASE", choices=[[], *CASES])
    a = parser.parse_args()
    notes, tensors = {}, {}
    if os.path.exists(a.out):
        with safe_open(a.out, "pt") as f:
            notes = json.loads(f.metadata()["cases"])
            tensors = {key: f.get_tensor(key) for key in f.keys()}
    for case in a.cases or CASES:
        torch.manual_seed(zlib.crc32(case.encode()))
        config, named, name, want = CASES[case]()
        numbers = (want.float().contiguous() + 0.0).numpy()  # -0 + 0 is +0
        notes[case] = {"config": config, "name": name, "shape": list(numbers.shape),
                       "sha256": hashlib.sha256(numbers.tobytes()).hexdigest(),
                       "versions": {wheel: importlib.metadata.version(wheel)
                                    for wheel in ("torch", LIBRARIES[case.split("-")[0]])}}
        tensors = {key: x for key, x in tensors.items() if not key.startswith(case + "/")}
        tensors.update({f"{case}/{key}": x.contiguous() for key, x in named.items()})
    save_file(tensors, a.out, {"cases": json.dumps(notes)})


if __name__ == "__main__":
    main()
