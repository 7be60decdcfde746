"""Small syncs without servers: what has changed, what a server makes of it, and when all weights are sent."""

import pytest
import torch
from torch import nn

from megatron_sspo.rollout.servers.loaders import megatron_sspo_delta as loader
from megatron_sspo.rollout.weight_sync.delta import DeltaTransport, changes_of, pack

NAN, INFINITY = float("nan"), float("inf")


def bits(tensor):
    return tensor.detach().flatten().view(loader.BITS[tensor.element_size()])


class Server(nn.Module):
    """Fuses two weights and shards them over two ranks, transposes one, pads one in float32, as SGLang may do."""

    def __init__(self, rank, dtype):
        super().__init__()
        self.rank = rank
        self.fused = nn.Parameter(torch.zeros(2, 70_000, dtype=dtype), requires_grad=False)
        self.turned = nn.Parameter(torch.zeros(70_000, 1, dtype=dtype), requires_grad=False)
        self.wide = nn.Parameter(torch.zeros(5), requires_grad=False)

    def load_weights(self, weights):
        for name, weight in weights:
            if name in "ab":
                self.fused.data[int(name == "b")].copy_(weight.chunk(2)[self.rank].narrow(0, 0, 1)[0])
            elif name == "c":
                self.turned.data.copy_(weight.t().contiguous().to(self.turned.device)[:, self.rank : self.rank + 1])
            else:
                self.wide.data.copy_(torch.cat([weight.float(), torch.zeros(2)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_servers_have_the_bits_of_the_last_sync(dtype):
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (2, 70_000), "b": (2, 70_000), "c": (2, 70_000), "d": (3,)}
    weights = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    weights["d"][0], weights["c"][0, 7] = 0.0, NAN
    last = {name: tensor.clone() for name, tensor in weights.items()}
    servers = [Server(rank, dtype) for rank in range(2)]
    for server in servers:
        server.load_weights(weights.items())
    num_changed = []
    for changed in (
        {"a": {0: 3.0, 90: NAN, 69_999: 1.5, 70_000: -INFINITY}},  # gaps of one byte, and of four
        {"b": {400: 0.5, 139_999: 2.0}, "d": {0: -0.0}},
        {"c": {}},
        {"d": {0: 1.5, 1: NAN, 2: -2.0}, "a": {90: 0.0}},
    ):
        for name, elements in changed.items():
            for place, value in elements.items():
                weights[name].view(-1)[place] = value
        found = list(changes_of(weights.items(), last))
        num_changed.append({change.of.name: len(change.bits) for change in found})
        if found:
            for server in servers:
                loader.load(server, pack(found))
        for rank, server in enumerate(servers):
            for place, name in enumerate("ab"):
                assert torch.equal(bits(server.fused[place]), bits(weights[name][rank]))
            assert torch.equal(bits(server.turned), bits(weights["c"][rank]))
            torch.testing.assert_close(server.wide[:3], weights["d"].float(), rtol=0, atol=0, equal_nan=True)
            assert torch.equal(torch.signbit(server.wide[:3]), torch.signbit(weights["d"].float()))
        assert all(torch.equal(bits(last[name]), bits(weights[name])) for name in weights)
    assert num_changed == [{"a": 4}, {"b": 2, "d": 1}, {}, {"a": 1, "d": 3}]


def test_a_model_that_would_lose_the_marks_is_an_error():
    model = Server(0, torch.float32)
    model.load_weights = lambda weights: [torch.zeros(3).copy_(weight) for _, weight in weights]
    change = list(changes_of([("d", torch.tensor([1.0, 0.0, 0.0]))], {"d": torch.zeros(3)}))
    with pytest.raises(RuntimeError, match="copies weights on their way"):
        loader.load(model, pack(change))


class Held:
    """A server, by the version that the engine knows and the one that it reports."""

    version, reported = None, "default"


class Session:
    """A session whose servers answer at once."""

    def __init__(self, servers):
        self.servers, self.num_bytes, self.requests = servers, 0, []

    def begin(self):
        pass

    def end(self, version):
        for server in self.servers:
            server.version, server.reported = 0, version

    def versions(self):
        return {server: server.reported for server in self.servers}

    def start(self, path, content):
        self.requests.append(content["load_format"])

    def finish(self, request):
        pass


class Full:
    """A transport of all weights."""

    def send(self, session, tensors, version, observe=None):
        session.requests += [name for name, _ in observe(tensors)]
        session.end(version)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({}, ["all", "some", "some", "some", "all", "some"]),
        ({"version": None}, ["all", "some", "all", "some", "some", "some"]),  # it failed, or released its memory
        ({"reported": "default"}, ["all", "some", "all", "some", "some", "some"]),  # restarted by its owner
    ],
)
def test_all_weights_are_sent_where_a_server_lacks_those_of_the_last_sync(event, expected):
    servers = [Held() for _ in range(2)]
    transport = DeltaTransport(Full(), every=4, bucket_bytes=1, tp_size=1)
    found = []
    for number in range(6):
        if number == 2:
            vars(servers[1]).update(event)
        session = Session(dict.fromkeys(servers))
        seen = []

        def observe(stream, seen=seen):
            for name, tensor in stream:
                seen.append(name)
                yield name, tensor

        weights = [("a", torch.full((3,), float(number))), ("b", torch.ones(2)), ("c", torch.tensor(float(number)))]
        transport.send(session, iter(weights), str(number), observe)
        assert seen == ["a", "b", "c"], "the checksums need every weight"
        found.append({"abc": "all", loader.NAME * 2: "some"}["".join(session.requests)])
    assert found == expected
