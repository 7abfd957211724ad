#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face transformers: language models with random weights (GPT-2-like, Llama-like, a BERT and a vision model),
greedy and sampled generation, in float32, fp16 and bf16, with static caches. No downloads."""

import suite
from suite import pick, require, show, skip

torch = suite.require_torch()
try:
    import transformers
    from transformers import (BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                              ViTConfig, ViTForImageClassification)
except ImportError as error:
    skip(f"transformers is not installed ({suite.first_line(error)})")

DEVICE = torch.device(suite.DEVICE)
NEW_TOKENS = pick(40, 4)
transformers.logging.set_verbosity_error()


def made(kind, config, dtype=torch.float32):
    torch.manual_seed(61)
    with DEVICE:
        model = kind(config)
    return model.to(device=DEVICE, dtype=dtype).eval()


def gpt2_config():
    return GPT2Config(n_layer=pick(6, 1), n_head=8, n_embd=pick(512, 64), n_positions=256, vocab_size=1000, bos_token_id=0,
                      eos_token_id=None, pad_token_id=999)


def llama_config():
    return LlamaConfig(hidden_size=pick(512, 64), intermediate_size=pick(1024, 128), num_hidden_layers=pick(6, 1),
                       num_attention_heads=8, num_key_value_heads=2, vocab_size=1000, max_position_embeddings=256,
                       bos_token_id=0, eos_token_id=None, pad_token_id=999)


def prompt(rows=2, length=12):
    generator = torch.Generator(device=DEVICE).manual_seed(62)
    return torch.randint(1, 900, (rows, length), device=DEVICE, generator=generator)


def generated(name, model, words, **options):
    with torch.no_grad():
        out = model.generate(words, attention_mask=torch.ones_like(words), max_new_tokens=NEW_TOKENS,
                             min_new_tokens=NEW_TOKENS, **options)
    for row in out[:, words.shape[1]:].tolist():
        print(f"{name}:", *row, flush=True)
    require(out.shape[1] == words.shape[1] + NEW_TOKENS, "all tokens were generated")
    with torch.no_grad():
        show(f"{name} logits", model(words).logits[:, -1])
    return out


def gpt2():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        model = made(GPT2LMHeadModel, gpt2_config(), dtype)
        generated(f"gpt2 {str(dtype)[6:]}", model, prompt(), do_sample=False)


def llama():
    for dtype in (torch.float32, torch.float16):
        for attention in ("eager", "sdpa"):
            config = llama_config()
            config._attn_implementation = attention
            model = made(LlamaForCausalLM, config, dtype)
            generated(f"llama {str(dtype)[6:]} {attention}", model, prompt(), do_sample=False)


def sampled():
    model = made(LlamaForCausalLM, llama_config())
    torch.manual_seed(63)
    generated("sampled", model, prompt(), do_sample=True, top_k=50, temperature=0.9)


def beams():
    model = made(GPT2LMHeadModel, gpt2_config())
    generated("beams", model, prompt(1), do_sample=False, num_beams=3)


def static_cache():
    model = made(LlamaForCausalLM, llama_config(), torch.bfloat16)
    generated("static cache", model, prompt(), do_sample=False, cache_implementation="static", disable_compile=True)


def encoders():
    model = made(BertModel, BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
                                       vocab_size=1000))
    with torch.no_grad():
        show("bert", model(prompt()).last_hidden_state)
    model = made(ViTForImageClassification, ViTConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
                                                      intermediate_size=256, image_size=64, patch_size=16), torch.float16)
    generator = torch.Generator(device=DEVICE).manual_seed(64)
    with torch.no_grad():
        show("vit", model(torch.randn(2, 3, 64, 64, device=DEVICE, dtype=torch.float16, generator=generator)).logits)


def fine_tuning():
    model = made(GPT2LMHeadModel, gpt2_config())
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    words, losses = prompt(4, 32), []
    for step in range(pick(4, 1)):
        optimizer.zero_grad()
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            loss = model(words, labels=words).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        print(f"fine tuning step {step}: {losses[-1].hex()} ~{losses[-1]:.6g}")
    require(losses[-1] <= losses[0], "training does not raise the loss")


if __name__ == "__main__":
    print("transformers", transformers.__version__, "torch", torch.__version__)
    suite.finish("transformers_generate", [gpt2, llama, sampled, beams, static_cache, encoders, fine_tuning])
