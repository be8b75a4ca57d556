"""A small real cross-encoder, built from the packaged weights; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForSequenceClassification

from operators.models.model_files import model_folder


def build_cross_encoder(path: Path) -> Path:
    """Save the packaged MiniLM with a seeded scoring head, large enough that scores differ, in folder `path`."""
    source = model_folder("packaged")
    torch.manual_seed(7)
    model = BertForSequenceClassification(BertConfig.from_pretrained(source, num_labels=1))
    model.bert.load_state_dict(AutoModel.from_pretrained(source).state_dict())
    torch.nn.init.normal_(model.bert.pooler.dense.weight, std=0.1)
    torch.nn.init.normal_(model.classifier.weight, std=0.5)
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(source).save_pretrained(path)
    return path
