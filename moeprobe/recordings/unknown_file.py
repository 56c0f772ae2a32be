"""Lines of Python that convert a file that no reader knows into a log."""

from moeprobe.recordings.log_rows import Fault

LINES = """\
import base64, json  # per sequence: lists of ids, and rows: uint16 array (tokens - 1, layers, experts per token)
routed = {"data": base64.b64encode(rows.tobytes()).decode(), "shape": list(rows.shape), "dtype": "uint16"}
answer = {"id": name, "prompt_token_ids": prompt_ids, "choices": [{"token_ids": ids, "routed_experts": routed}]}
with open("responses.jsonl", "a") as file:
    print(json.dumps(answer), file=file)"""


def not_recognized(sentence: str) -> Fault:
    """Return the fault of a file that no reader knows, with the lines that convert it as a note."""
    fault = Fault(f"{sentence}. These lines write what can be imported")
    fault.add_note(LINES)
    return fault
