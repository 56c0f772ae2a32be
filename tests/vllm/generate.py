"""Let vLLM answer prompts of token ids, and write its answers as JSON; runs in the environment of vLLM.

TRITON_INTERPRET=1 build/vllm/bin/python tests/vllm/generate.py MODEL DTYPE PROMPTS.json ANSWERS.jsonl
"""

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer greedily, with log-probabilities and routed experts."""
    from vllm import LLM, SamplingParams

    model, dtype, prompts, answers = sys.argv[1:]
    server = LLM(
        model, dtype=dtype, max_model_len=512, enforce_eager=True, enable_return_routed_experts=True,
        skip_tokenizer_init=True,
    )  # fmt: skip
    given = [{"prompt_token_ids": ids} for ids in json.loads(Path(prompts).read_text())]
    sampling = SamplingParams(temperature=0, max_tokens=12, logprobs=0, detokenize=False, ignore_eos=True)
    lines = [json.dumps(answer_of(output)) for output in server.generate(given, sampling)]
    Path(answers).write_text("\n".join(lines) + "\n")


def answer_of(output: Any) -> dict[str, Any]:
    """Return vLLM's RequestOutput as JSON."""
    choices = [
        {
            "index": choice.index,
            "token_ids": list(choice.token_ids),
            "logprobs": [
                scores[token].logprob for token, scores in zip(choice.token_ids, choice.logprobs, strict=True)
            ],
            "routed_experts": choice.routed_experts.tolist(),
        }
        for choice in output.outputs
    ]
    return {
        "request_id": output.request_id,
        "prompt_token_ids": list(output.prompt_token_ids),
        "outputs": choices,
    }


if __name__ == "__main__":
    main()
