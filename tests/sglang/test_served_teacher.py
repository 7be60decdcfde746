"""A teacher on SGLang's servers: its log-probs are Transformers', and nothing is lost if a server is killed."""

import json
import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from megatron_sspo.errors import UserError
from megatron_sspo.job.served_teacher import ServedTeacher
from megatron_sspo.rollout.servers import pool
from megatron_sspo.run import Model, Teacher
from megatron_sspo.types import Prompt, Rollout
from tests.policy import tiny_policy
from tests.policy.tiny_policy import log_probs, make_run, read_batch, reference, save_batch

KILLED_AFTER = 5  # answers
K = 7


def served(folders, run_folder, student="moe", **teacher):
    """Opens the teacher of a run whose policy has the folder of a kind."""
    run = make_run(teacher=Teacher(**teacher))
    return ServedTeacher(replace(run, model=Model(path=str(folders[student]))), run_folder)


def check(model, groups):
    for group in groups:
        for rollout in group.rollouts:
            with torch.no_grad():
                expected = log_probs(model, group.prompt, rollout)
            torch.testing.assert_close(torch.tensor(rollout.teacher_log_probs), expected, rtol=0, atol=1e-4)


def check_top(model, groups):
    """Compares the log-probs of the likeliest tokens with the largest of Transformers' distribution."""
    for group in groups:
        for rollout in group.rollouts:
            tokens = torch.tensor([[*group.prompt.tokens, *rollout.tokens.tolist()]])
            with torch.no_grad():
                distribution = torch.log_softmax(model(tokens).logits[0], dim=-1)[len(group.prompt.tokens) - 1 : -1]
            own = torch.tensor(rollout.response_mask(), dtype=torch.bool)
            found, top = (
                torch.tensor(values).reshape(len(own), K)
                for values in (rollout.teacher_top_log_probs, rollout.teacher_top_tokens)
            )
            torch.testing.assert_close(found[own], distribution[own].topk(K).values, rtol=0, atol=1e-4)
            torch.testing.assert_close(found[own], distribution.gather(1, top.long())[own], rtol=0, atol=1e-4)
            assert not found[~own].any()


def words_exchanged(folder, copy):
    """Copies a model's folder with a tokenizer of the same words in another order."""
    shutil.copytree(folder, copy)
    path = copy / "tokenizer.json"
    words = json.loads(path.read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["w5"], vocabulary["w6"] = vocabulary["w6"], vocabulary["w5"]
    path.write_text(json.dumps(words))
    return copy


def test_a_served_teacher_scores_like_transformers_and_survives_its_server(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_policy, "TEMPERATURE", 1.0)
    batch = read_batch(save_batch("moe", "ragged", folders["moe"], tmp_path / "batch.npz"))
    batch += [replace(batch[0], prompt=Prompt(id="short", tokens=(9,), answer=""))]  # with an empty one in another
    model = reference(folders["dense"])
    teacher = served(folders, tmp_path, path=str(folders["dense"]), server={})
    try:
        server, ask, answers = teacher.pool.servers[0], teacher._requests.ask, []
        process = server.process
        assert process is not None

        async def killing(*arguments, **options):
            answers.append(await ask(*arguments, **options))
            if len(answers) == KILLED_AFTER:
                os.killpg(process.pid, signal.SIGKILL)
            return answers[-1]

        monkeypatch.setattr(teacher._requests, "ask", killing)
        found = teacher.log_probs([batch, batch[:1]])
        assert server.num_restarts == 1 and len(answers) == 15 + 4
        assert [len(groups) for groups in found] == [4, 1]
        for groups in found:
            check(model, groups)

        monkeypatch.setenv("MEGATRON_SSPO_SERVER_KEY", teacher.key)
        other = served(folders, tmp_path, urls=[server.client.url])
        check(model, other.log_probs([batch])[0])
        likeliest = served(folders, tmp_path, urls=[server.client.url], top_k=K)
        check_top(model, likeliest.log_probs([batch])[0])
        likeliest.close()
        with pytest.raises(UserError, match=r"^teacher: a server's tokenizer has another vocabulary"):
            served({"moe": words_exchanged(folders["moe"], tmp_path / "other")}, tmp_path, urls=[server.client.url])
        tokens = np.full(200, 5, np.int32)
        values = {"tokens": tokens, "rollout_log_probs": np.zeros(200, np.float32)}
        long = Rollout(**values, text="", finish_reason="stop", policy_version=0)
        with pytest.raises(UserError, match=r"^teacher: .* answered 400: .*take its longest sequences"):
            other.log_probs([[replace(batch[0], rollouts=[long])]])
        monkeypatch.setattr(pool, "_START_SECONDS", 0.0)
        process.stop()
        with pytest.raises(UserError, match=r"^teacher: 0 of 1 rollout servers are left"):
            other.log_probs([batch])
        other.close()
    finally:
        teacher.close()
