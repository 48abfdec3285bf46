"""What a user is told when a worker lacks a module."""

import pytest

from sparkguard.core.missing import missing_on_worker


def test_names_the_module_and_the_way_out() -> None:
    """The sentence names the module, the error and what to do."""
    with pytest.raises(ImportError) as caught:
        __import__("nowhere_to_be_found")
    sentence = missing_on_worker(caught.value)
    assert sentence.startswith("The module 'nowhere_to_be_found' cannot be imported on this worker")
    assert "ModuleNotFoundError: No module named 'nowhere_to_be_found'" in sentence
    assert "install the module or the plugin on every worker" in sentence


def test_nameless() -> None:
    """An error without a name still makes a sentence."""
    assert missing_on_worker(ImportError("odd")).startswith("A module cannot be imported on this")
