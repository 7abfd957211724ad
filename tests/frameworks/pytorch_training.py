#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of an MLP, a conv net and a small transformer: float32, bf16 and fp16 autocast with GradScaler, fused
and captured optimizers, gradient checkpointing, saving and loading; seeded, bit for bit."""

import io

import suite
from suite import pick, require, show

torch = suite.require_torch()
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

DEVICE = torch.device(suite.DEVICE)
STEPS = pick(6, 2)


def show_loss(name, loss):
    print(f"{name}: loss {float(loss.detach().double()).hex()} ~{float(loss.detach()):.6g}", flush=True)


class MLP(nn.Module):

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width),
                                    nn.SiLU(), nn.Dropout(0.1), nn.Linear(width, 10))

    def forward(self, x):
        return self.layers(x)


class ConvNet(nn.Module):

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                                  nn.Conv2d(32, 64, 3, padding=1, groups=2), nn.GroupNorm(4, 64), nn.ReLU(),
                                  nn.Conv2d(64, 64, 1, stride=2), nn.AvgPool2d(4))
        self.head = nn.Linear(64 * 4, 10)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


class Transformer(nn.Module):

    def __init__(self, width=128, heads=4, layers=2, words=97):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(1, 64, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        h = self.words(x) + self.places[:, :x.shape[1]]
        return self.head(self.body(h, mask=mask, is_causal=True))


def on_device(make, seed):
    torch.manual_seed(seed)
    with DEVICE:
        return make()


def train(name, model, batch, labels, optimizer, dtype=None, scaler=None):
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE.type, dtype=dtype, enabled=dtype is not None):
            out = model(batch)
            loss = F.cross_entropy(out.reshape(-1, out.shape[-1]), labels.reshape(-1))
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        show_loss(f"{name} step {len(losses)}", loss)
        losses.append(float(loss.detach()))
    require(all(value == value for value in losses), "every loss is a number")
    for key, parameter in list(model.named_parameters())[:3]:
        show(f"{name} {key}", parameter)
        show(f"{name} gradient {key}", parameter.grad)
    return losses


def mlp():
    model = on_device(lambda: MLP(pick(512, 64)), 21)
    batch = torch.randn(pick(256, 32), 64, device=DEVICE)
    labels = torch.randint(0, 10, (len(batch),), device=DEVICE)
    losses = train("mlp sgd", model, batch, labels, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    require(losses[-1] < losses[0], "training lowers the loss")
    for fused in (False, True):
        model = on_device(lambda: MLP(pick(512, 64)), 22)
        train(f"mlp adamw fused={fused}", model, batch, labels, torch.optim.AdamW(model.parameters(), fused=fused))


def conv_net():
    for layout in (torch.contiguous_format, torch.channels_last):
        model = on_device(ConvNet, 23).to(memory_format=layout)
        batch = torch.randn(pick(32, 4), 3, 32, 32, device=DEVICE).to(memory_format=layout)
        labels = torch.randint(0, 10, (len(batch),), device=DEVICE)
        train(f"conv net {str(layout)[6:]}", model, batch, labels, torch.optim.Adam(model.parameters(), lr=1e-3))
        model.eval()
        with torch.no_grad():
            show("conv net evaluated", model(batch))


def transformer():
    model = on_device(Transformer, 24)
    words = torch.randint(0, 97, (pick(16, 2), 65), device=DEVICE)[:, :64]
    with sdpa_kernel(SDPBackend.MATH):
        train("transformer", model, words[:, :-1], words[:, 1:], torch.optim.AdamW(model.parameters(), lr=1e-3))


def mixed_precision():
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        scaler = torch.amp.GradScaler(DEVICE.type, enabled=dtype == torch.float16)
        model = on_device(Transformer, 25)
        words = torch.randint(0, 97, (pick(16, 2), 65), device=DEVICE)[:, :64]
        with sdpa_kernel(SDPBackend.MATH):
            train(f"transformer {name}", model, words[:, :-1], words[:, 1:],
                  torch.optim.AdamW(model.parameters(), lr=1e-3), dtype, scaler)
        print(f"{name} scale {scaler.get_scale()}")
        model = on_device(ConvNet, 26).to(memory_format=torch.channels_last)
        batch = torch.randn(pick(32, 4), 3, 32, 32, device=DEVICE)
        labels = torch.randint(0, 10, (len(batch),), device=DEVICE)
        train(f"conv net {name}", model, batch, labels, torch.optim.SGD(model.parameters(), lr=0.05), dtype, scaler)


def scaler_skips_infinities():
    """A step with an infinite gradient is left out and the scale halved: this needs the device's answer on the host."""
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=1024.0)
    weight = torch.ones(8, device=DEVICE, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for factor in (1.0, float("inf"), 2.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"factor {factor}: scale {scaler.get_scale()}, weight {weight.detach()[0].item()}")
    require(weight.detach()[0].item() == -2.0, "the infinite step was left out")


def attention():
    with DEVICE:
        torch.manual_seed(27)
        q, k, v = (torch.randn(2, 4, pick(256, 32), 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
                    SDPBackend.CUDNN_ATTENTION):
        try:
            with sdpa_kernel(backend):
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        except RuntimeError as error:
            print(f"attention {backend.name}: {suite.first_line(error)}")
            continue
        show(f"attention {backend.name}", out)
        if backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
            grads = torch.autograd.grad(out.float().sum(), (q, k, v))
            show(f"attention {backend.name} gradient", grads[0])


def recurrent():
    model = on_device(lambda: nn.LSTM(32, 64, num_layers=2, batch_first=True), 28)
    x = torch.randn(4, 20, 32, device=DEVICE)
    out, (hidden, _) = model(x)
    show("lstm", out)
    out.square().mean().backward()
    show("lstm hidden", hidden)
    show("lstm gradient", model.weight_ih_l0.grad)


def checkpointing_and_saving():
    from torch.utils.checkpoint import checkpoint
    model = on_device(lambda: MLP(128), 29)
    x = torch.randn(32, 64, device=DEVICE, requires_grad=True)
    checkpoint(model, x, use_reentrant=False).square().sum().backward()
    show("checkpointed gradient", x.grad)
    stored = io.BytesIO()
    torch.save({"model": model.state_dict(), "random": torch.cuda.get_rng_state() if DEVICE.type == "cuda" else 0}, stored)
    stored.seek(0)
    state = torch.load(stored, map_location=DEVICE, weights_only=True)
    again = on_device(lambda: MLP(128), 30)
    again.load_state_dict(state["model"])
    model.eval(), again.eval()
    require(torch.equal(model(x), again(x)), "a loaded model computes what the saved one did")
    print("saved and loaded: equal")


if __name__ == "__main__":
    suite.finish("pytorch_training", [mlp, conv_net, transformer, mixed_precision, scaler_skips_infinities, attention,
                                      recurrent, checkpointing_and_saving])
