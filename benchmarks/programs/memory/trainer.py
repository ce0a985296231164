"""A small BERT under the Trainer of transformers, evaluated after each epoch."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Texts(Dataset):
    def __init__(self, count):
        chance = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(2000, (count, 64), generator=chance)
        self.labels = torch.randint(4, (count,), generator=chance)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, place):
        return {"input_ids": self.tokens[place], "labels": self.labels[place]}


if __name__ == "__main__":
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=2000,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=64,
        num_labels=4,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=2,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=32,
            dataloader_pin_memory=False,
            eval_strategy="epoch",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            use_cpu=True,
        )
        Trainer(
            model=BertForSequenceClassification(config), args=arguments, train_dataset=Texts(48), eval_dataset=Texts(64)
        ).train()
