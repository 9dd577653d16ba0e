#!/usr/bin/env python3
"""Our job on CTranslate2: run_ctranslate2.py --job JOB.jsonl [--model smollm2] [--format int8] [--batch 64]

CTranslate2 reads no GGUF: this script converts the Hugging Face folder of models.py to its model
specification (its own converter needs torch). int8 and float32; its CPU build takes
no bfloat16. Tokens are named after their ids, so that ids go in and out as they are. The streaming job:
it has no offloading and holds the whole model, 3.2 GB in int8, so under 2.5 GiB it is killed.
"""
import json
import os
import shutil
import time

import models
import peer


def tensors_open(path):
    """name -> f32 array, read when asked for."""
    import numpy as np
    with open(path, "rb") as f:
        n = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(n))
    data = np.memmap(path, np.uint8, "r", 8 + n)

    def tensor(name):
        at, end = header[name]["data_offsets"]
        bits = data[at:end].view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(header[name]["shape"])
    return tensor


def spec_make(place):
    """The model as CTranslate2 describes models."""
    import ctranslate2
    import numpy as np
    with open(os.path.join(place, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    tensor = tensors_open(os.path.join(place, "model.safetensors"))
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    spec = ctranslate2.specs.TransformerDecoderModelSpec.from_config(
        c["num_hidden_layers"], heads, activation=ctranslate2.specs.Activation.SWISH, pre_norm=True, ffn_glu=True,
        rms_norm=True, rotary_dim=0, rotary_interleave=False, rotary_base=c["rope_theta"],
        num_heads_kv=kv_heads if kv_heads != heads else None)
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = decoder.projection.weight = tensor("model.embed_tokens.weight")
    decoder.layer_norm.gamma = tensor("model.norm.weight")
    for i, layer in enumerate(decoder.layer):
        def weight(part, i=i):
            return tensor(f"model.layers.{i}.{part}.weight")
        layer.self_attention.layer_norm.gamma = weight("input_layernorm")
        layer.self_attention.linear[0].weight = np.concatenate([weight(f"self_attn.{x}_proj") for x in "qkv"])
        layer.self_attention.linear[1].weight = weight("self_attn.o_proj")
        layer.ffn.layer_norm.gamma = weight("post_attention_layernorm")
        layer.ffn.linear_0.weight = weight("mlp.gate_proj")
        layer.ffn.linear_0_noact.weight = weight("mlp.up_proj")
        layer.ffn.linear_1.weight = weight("mlp.down_proj")
    spec.register_vocabulary([str(i) for i in range(c["vocab_size"])])
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "1", "2", "0"
    spec.config.layer_norm_epsilon = c["rms_norm_eps"]
    return spec


def converted(model, kind):
    place = os.path.join(models.PLACE, f"{os.path.basename(model)}-ct2-{kind}")
    if not os.path.exists(place):
        source = peer.model_path(model, "hf")
        part = place + ".part"
        shutil.rmtree(part, ignore_errors=True)
        os.makedirs(part)
        spec = spec_make(source)
        spec.validate()
        spec.optimize(quantization=kind)
        spec.save(part)
        os.rename(part, place)
    return place


def main():
    p = peer.arguments(__doc__, ["int8", "float32"], 64)
    a = peer.parse(p)
    peer.enter("ctranslate2")
    path = converted(a.model, a.format)
    if a.prepare:
        print(path)
        return
    job = peer.Job(a.job)
    begin = time.monotonic()
    import ctranslate2
    generator = ctranslate2.Generator(path, "cpu", compute_type=a.format, inter_threads=1, intra_threads=a.threads)
    load_s = time.monotonic() - begin
    prompts = [[str(i) for i in ids] for ids in job.prompts]
    if a.warm:
        generator.generate_batch([[str(i) for i in job.warm_prompt()]], max_length=peer.WARM_TOKENS, sampling_topk=1,
                                 include_prompt_in_result=False, end_token=[])
    start = time.monotonic()
    results = generator.generate_batch(prompts, max_batch_size=a.batch, max_length=job.n_new, sampling_topk=1,
                                       include_prompt_in_result=False, end_token=[])  # empty: no token ends a row
    end = time.monotonic()
    out = [[int(i) for i in r.sequences_ids[0]] for r in results]
    peer.emit(a, job, out, "ctranslate2", peer.version_of("ctranslate2"), end - start, end - begin, load_s,
              peer.peak_rss_mib())


if __name__ == "__main__":
    main()
