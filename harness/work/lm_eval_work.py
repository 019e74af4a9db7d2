"""Base class of work whose requests come from lm-eval; this project's tasks are converted to lm-eval tasks for it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from exitbench.errors import UserError
from exitbench.harness.cells.prompts import Prompts, render_turns
from exitbench.harness.engine.checkpoints.generation_config import not_applied
from exitbench.harness.work.base import Answer, Evaluated, Progress, Work
from exitbench.harness.work.encoding import Encoding, reads_up_to
from exitbench.harness.work.lm import EarlyExitLM
from exitbench.harness.work.sharing import PASS_ROWS
from exitbench.methods.base import Parts
from exitbench.tasks import lm_eval_bridge
from exitbench.tasks.base import Task
from exitbench.tasks.lm_eval.leaves import Chat
from exitbench.tasks.lm_eval.task import LmEvalTask

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from exitbench.harness.engine.checkpoints.digest import Description


class LmEvalWork(Work[Answer]):
    """Base class of generation and scoring with a decoder; lm-eval sends the requests to an `EarlyExitLM`."""

    kinds = ("quality", "timing", "probe", "scores", "replay", "fit", "calibration")

    @classmethod
    def check_model(cls, task: Task, description: Description) -> None:
        """Check that the model outputs text and is not a classifier.

        Raises:
            UserError: The model is a classifier.
        """
        if description.labels is not None:
            raise UserError(
                f"task {task.name!r} requires texts, and model {description.model.name!r} is a classifier; "
                "allowed with it: tasks of classification. 'tasks' of [models.NAME] says which are its own."
            )

    @property
    def ignored_settings(self) -> Mapping[str, Any]:
        """Settings in the checkpoint's generation configuration that this project does not apply, by name."""
        return not_applied(self.model.path, self.settings).settings

    @property
    def prompts(self) -> Prompts:
        """Encoder of this project's prompts to token ids, with the cell's settings."""
        tokenizer, max_positions = self.model.tokenizer, self.model.model.max_positions
        return self.model.cached(("prompts", self.settings), lambda: Prompts(tokenizer, self.settings, max_positions))

    @property
    def encoding(self) -> Encoding:
        """`Encoding` that turns the texts of lm-eval's requests into token ids; cached with the model."""
        return self.model.cached("encoding", self._make_encoding)

    def _make_encoding(self) -> Encoding:
        checkpoint, tokenizer = self.model.checkpoint, self.model.tokenizer
        longest = reads_up_to(self.model.path, tokenizer, checkpoint.model.max_positions)
        return Encoding(tokenizer, checkpoint.kind, longest)

    @property
    def chat(self) -> Chat | None:
        """(System message, function that renders messages) for lm-eval's own tasks; None without a chat template."""
        if self.settings.chat_template_sha256 is None:
            return None
        _ = self.prompts  # raises if the template differs from the planned one
        return self.settings.system, partial(render_turns, self.model.tokenizer)

    def instances(self) -> dict[str, list[Instance]]:
        """Return lm-eval's request objects (`Instance`) for the documents of an lm-eval task, by document key."""
        assert isinstance(self.task, LmEvalTask)
        return self.task.instances(self.model.documents(self.data)[0], self.chat)

    def lm(self, parts: Parts, on_progress: Progress) -> EarlyExitLM:
        """Return the lm-eval model that answers this cell's requests, and those of the cells that share its pass."""
        lm = EarlyExitLM(self.model.checkpoint, self.prompts, parts, self.cell.rows, self.seed_of, on_progress)
        passes, cell_id = self.model.passes, self.cell.cell_id
        lm.cached_answers, lm.shared_cells, lm.shared_rows = (
            passes.cached_answers(cell_id),
            passes.shared_cells(cell_id),
            PASS_ROWS,
        )
        lm.on_abandon = partial(passes.abandon, cell_id)
        if isinstance(self.task, LmEvalTask):
            documents = self.model.documents(self.data)[0]
            keys = {(document.fields["task"], document.fields["doc_id"]): document.key for document in documents}
            lm.encoding, lm.key_of = self.encoding, lambda request: keys[request.task_name, request.doc_id]
        return self.model.wrap_lm(self.item, lm)

    @abstractmethod
    def answers_of(self, lm: EarlyExitLM) -> Mapping[str, Answer]:
        """Return the answers that an lm-eval model has collected during a run of lm-eval, by document key."""

    def evaluate(self, parts: Parts, on_progress: Progress) -> Evaluated[Answer]:
        """Run lm-eval on the documents; return the answers, their scores, and the aggregated metrics."""
        lm, documents = self.lm(parts, on_progress), self.documents
        if isinstance(self.task, LmEvalTask):
            scores, aggregated = self.task.evaluate(lm, documents, self.chat, self.model.confirms_unsafe_code)
        else:
            results = self._evaluate_own(lm)
            aggregated = {metric: results["results"][self.task.name][f"{metric},none"] for metric in self.task.metrics}
            scores = lm_eval_bridge.scores(self.task, results)
        answers = self.answers_of(lm)
        return Evaluated({document.key: answers[document.key] for document in documents}, scores, aggregated)

    def _evaluate_own(self, lm: EarlyExitLM) -> Any:
        """Run lm-eval on one of this project's tasks; return lm-eval's dictionary of results, with logged samples."""
        from lm_eval.evaluator import evaluate
        from lm_eval.tasks import TaskManager

        config = self.task.lm_eval_config(self.documents, self.cell.model.kind)
        limits = {"until": list(self.settings.stop), "max_gen_toks": self.settings.max_new_tokens}
        config["generation_kwargs"] = {**config["generation_kwargs"], **limits}
        tasks = TaskManager(include_defaults=False).load([config])
        return evaluate(lm=lm, task_dict=tasks, bootstrap_iters=0, log_samples=True)
