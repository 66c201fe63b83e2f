"""What the pages state is what the code does and what was measured: reference, settings, figures, files that are named."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile_inputs
import hostile_versions
import pytest
import typer
from calibration_integers import clean_table, shifted_table
from demo_processors import table
from docs_pages import ROOT, pages
from fault_calls import summary
from fault_calls import table as table_of_calls
from gpu.first import REFERENCE
from gpu.first_table import floor_ms
from hostile_bundles import HOSTILE_BUNDLES
from limits import MOST_MB, MOST_SECONDS

from flows.cli.app import app
from flows.docs.reference import PAGES
from tasks.reporting.formats import NO_VALUE
from validators.gates import champion
from validators.gates.catalog import GATES, LATER_GATES
from validators.job.job import Job
from validators.job.job_gates import Gates
from validators.job.metric_facts import METRICS
from validators.targets import BUILT_IN

RESULTS = ROOT / "benchmarks" / "results"


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


# Reference pages


def keys(schema: dict[str, Any]) -> set[str]:
    """Every key of a record and of those below it."""
    parts = [schema, *schema.get("$defs", {}).values()]
    return {key for part in parts for key in part.get("properties", {})}


def first_cells(page: str) -> list[str]:
    """The first cell of each row of the tables on a page, without its marks."""
    return [cell.strip("`") for cell in re.findall(r"^\| ([^|]+?) \|", page, re.MULTILINE)]


def test_job_page_gives_type_default_and_meaning_of_every_key() -> None:
    page = PAGES["reference/job.md"]()
    assert keys(Job.model_json_schema()) <= set(first_cells(page))
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert all(len(row) == 4 and all(cell.strip(" |") for cell in row) for row in rows)
    assert "| `confidence` | number > 0.5, < 1 | `0.95` | One-sided confidence" in page
    assert "| `launches` | whole number ≥ 1, ≤ 20 | `6` |" in page
    assert "| `objective` | `latency`, `size` | `latency` |" in page


def test_every_command_is_on_its_page_with_its_options() -> None:
    page = PAGES["reference/commands.md"]()
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]  # a group has them
        section = page.split(f"{{ #{name} }}", 1)[1].split("\n## ", 1)[0]
        options = [option for param in command.params for option in param.opts if option.startswith("-")]
        assert [option for option in options if f"`{option}`" not in section] == []
        assert f"```bash\nquantgate {name}" in section, "an example"


def test_metrics_targets_and_exit_codes_are_on_their_pages() -> None:
    assert set(METRICS) <= set(first_cells(PAGES["reference/metrics.md"]()))
    assert set(BUILT_IN) <= set(first_cells(PAGES["reference/names.md"]()))
    codes = first_cells(PAGES["reference/exit-codes.md"]())
    in_ci = first_cells(pages()["docs/ci.md"].split("| code | meaning |")[1].split("\n\n")[0])
    assert len(in_ci) >= 5 and in_ci == [code for code in codes if code.isdigit()]


def gates_of_the_code() -> Iterator[str]:
    """The names that verdicts are made with: the first argument, or `gate`, of what makes one."""
    makers = {
        "Verdict",
        "bounded",
        "disturbed",
        "_verdict",
        "judge_exact",
        "_judge_ratio",
        "_judge_launches",
        "_tail",
        "_metric",
        "_ratio",
    }
    for path in (ROOT / "validators").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in makers:
                given = [keyword.value for keyword in node.keywords if keyword.arg == "gate"] or node.args[:1]
                yield from (str(value.value) for value in given if isinstance(value, ast.Constant))
                names = [value.id for value in given if isinstance(value, ast.Name)]
                yield from (getattr(champion, name) for name in names if name.isupper())


def test_the_table_of_gates_has_every_verdict_and_every_key() -> None:
    rows = (*GATES, *LATER_GATES)
    assert set(gates_of_the_code()) == {gate.name for gate in rows} - {"logged.<metric>"}
    assert {gate.key for gate in rows} - {""} == set(Gates.model_fields) - {"confidence"}


# Settings


def test_page_lists_exactly_the_settings_that_the_code_reads() -> None:
    files = [path for folder in ("flows", "tasks", "validators", "infra") for path in (ROOT / folder).rglob("*")]
    files += [ROOT / "Dockerfile", ROOT / "Makefile"]
    texts = [
        path.read_text(encoding="utf-8", errors="ignore") for path in files if path.suffix != ".pyc" and path.is_file()
    ]
    read = {name for text in texts for name in re.findall(r"\bQUANTGATE_[A-Z_]+[A-Z]\b", text)}
    table = pages()["docs/environment.md"].split("Of others")[0]
    assert set(re.findall(r"^\| `(QUANTGATE_\w+)` \|", table, re.MULTILINE)) == read


# Figures


def percent(figure: dict[str, Any]) -> str:
    return f"{figure['share']:.1%}".replace("%", " %")


def decisions() -> Iterator[str]:
    found = result("verdict_errors")
    for n in (200, 500, 1000, 2000):
        of_drop = {
            row["drop_over_tolerance"]: row for row in found["verdicts"] if (row["kind"], row["n"]) == ("flips 5 %", n)
        }
        none, same, twice = (of_drop[drop] for drop in (0, 1, 2))
        figures = (none["pass"], same["pass"], same["naive_pass"], twice["pass"], twice["fail"])
        yield " | ".join([f"| {n:,}", *map(percent, figures)]) + " |"
    for truth, chosen in found["choice_among_20"].items():
        figures = (chosen["promoted on what chose"], chosen["promoted after confirmation"])
        yield " | ".join([f"| {truth}", *map(percent, figures)]) + " |"
    for gate, wrong in result("verdict_errors_decisions")["wrong"].items():
        yield f"| `{gate}` | {percent(wrong)} |"


def slow_blocks() -> Iterator[str]:
    for row in result("verdict_errors_decisions")["slow_blocks"]:
        passed = [row[kept][gate] for gate in ("p95_ratio", "cost_per_million") for kept in ("last", "first")]
        yield " | ".join([f"| {row['slow_blocks']:.0%}".replace("%", " %"), *map(percent, passed)]) + " |"


def timings() -> Iterator[str]:
    titles = {
        "quiet": "a model beside itself",
        "busy": "a model beside itself, one core taken",
        "slower": "a model beside one of 10 % more layers",
        "slower_busy": "a model beside one of 10 % more layers, one core taken",
        "faster_busy": "a model beside its INT8 variant, one core taken",
    }
    for key, title in titles.items():
        found = result("latency_errors")[key]
        counts = [found["method"][verdict]["count"] for verdict in ("faster", "slower", "disturbed")]
        naive = sum(figure["count"] for figure in found["naive"].values())
        yield " | ".join([f"| {title}", *map(str, (found["comparisons"], *counts, naive))]) + " |"


def drifts() -> Iterator[str]:
    for drift in result("power")["drifts"].values():
        points = [
            f"{point['strength']:g}: {point['refused']['share']:.0%} ({point['refused_or_warned']['share']:.0%})"
            for point in drift["points"]
        ]
        yield f"| {drift['title']} | {', '.join(points)} |".replace("%", " %")
    alarms = result("false_alarms_texts_128")
    yield f"Of {alarms['splits']} random clean draws of {alarms['calibration_samples']} movie reviews"
    counts = [alarms[key]["count"] for key in ("refused", "accepted_with_warnings")]
    yield "{} were refused and {} were warned of".format(*counts)
    yield f"interval 0 to {alarms['refused']['interval'][1]:.1%}".replace("%", " %")


def speeds() -> Iterator[str]:
    found = result("variants_ort_cpu")
    at = [("text", "batch 1, 16 tokens"), ("text", "batch 16, 48 tokens"), ("image", "batch 1"), ("image", "batch 16")]
    names = ["fp32-fused", *(f"int8-static-mse-pc{end}" for end in ("", "-all", "-smooth")), "int8-dynamic-pc"]
    for name in [*names, "int4-g32-gptq", "ORT static, defaults"]:
        cells = [name if name.startswith("ORT") else f"`{name}`"]
        for model, request in at:
            (row,) = [row for row in found[model][request]["rows"] if row["name"].split("@")[0] == name]
            cells.append(f"{row['speedup']['value']:.2f}x" if "speedup" in row else "refused")
        yield f"| {' | '.join(cells)} |"


FALLBACKS = (
    "Gemm, scales for each output",
    "Gemm, scales along K",
    "Conv, weights only",
    "MatMul, activations only",
    "Gemm, INT16 activations",
    "ConvTranspose",
    "a float16 file on a CPU",
)


def fallbacks() -> Iterator[str]:
    rows = {row["file"]: row for row in result("fallbacks")["rows"]}
    for name in FALLBACKS:
        row = rows[name]
        shares = [f"{row[key]:.0%}" for key in ("agreement", "operators_counted", "coverage_macs")]
        yield " | ".join([f"| {name}", *shares, ", ".join(row["kernels"])]).replace("%", " %") + " |"


FIRST_CONTACT = "gpu-first_nvidia-h200_cc9.0_2026-11-26"


def first_contact() -> Iterator[str]:
    figures = result(FIRST_CONTACT)
    for model in ("encoder", "encoder-wide", "decoder"):
        for form in ("fp16", "fp8-amax-pc", "int8-dynamic-pc", "int4-g128-rtn"):
            ratios = [
                figures["cells"][f"torch-cuda/{model}/b{batch}/{form}"]["speedup"]["value"] for batch in (1, 8, 32, 128)
            ]
            low = figures["artifacts"][f"torch-cuda/{model}/{form}"]["coverage"]["low"]
            floors = [[floor_ms(figures, model, label, batch) for label in (REFERENCE, form)] for batch in (1, 32)]
            most = [one[0] / other[0] for one, other in floors if one and other]
            cells = [model, f"`{form}`", f"{low:.0%}", *(f"{ratio:.2f}x" for ratio in ratios)]
            yield f"| {' | '.join(cells)} | {' / '.join(f'{ratio:.2f}x' for ratio in most)} |"
    for model in ("encoder", "encoder-wide"):
        for form in ("bf16", "fp8-amax-pc", "int8-dynamic-pc"):
            times = figures["artifacts"][f"torch-cuda/{model}/{form}"]["coverage"]["us_by_kernel"]
            other = times.pop("generated code and other kernels of torch")
            yield f"| {model} | `{form}` | {sum(times.values()):.0f} | {other:.0f} |"
    twice = [cell["speedup"]["value"] for key, cell in figures["cells"].items() if key.endswith("/bf16")]
    yield f"gave {min(twice):.3f} to {max(twice):.3f}:"


def kills() -> Iterator[str]:
    runs = result("kills")["runs"]
    titles = {
        "flow": "process of the run",
        "child": "a child of it",
        "worker": "worker with the run",
        "prefect": "Prefect server",
        "mlflow": "MLflow server",
    }
    for victim, title in titles.items():
        found = [run["loaded"] for run in runs for kill in run["kills"] if kill["what"] == victim]
        yield f"| {title} | {len(found)} | {sum(found)} |"
    count, retries = (sum(map(amount, runs)) for amount in (lambda run: len(run["kills"]), lambda run: run["retries"]))
    yield f"{count} kills in {len(runs)} runs, with {retries} retries"
    promoted = sum(run["outcome"] == "Promoted" and run["answers"] for run in runs)
    wrong, redone, other = (
        sum(run[key] for run in runs) for key in ("aliases_wrong", "redone", "leftovers_after_clean")
    )
    yield f"{promoted} runs were promoted, and their champions answer: {wrong} aliases wrong, {redone} finished entries redone"
    yield f"{sum(bool(run['problems']) for run in runs)} runs left anything else than an undisturbed run does"
    yield f"{sum(run['leftovers'] for run in runs)} leftovers were found, of which {other} stayed after `--clean`"
    yield f"{sum(run['bundles'] > 1 for run in runs)} runs sealed their evidence twice"


@pytest.mark.parametrize(
    ("page", "rows"),
    [
        ("docs/how-the-gate-decides.md", [*decisions(), *timings(), *slow_blocks()]),
        ("docs/how-calibration-is-judged.md", list(drifts())),
        ("docs/low-precision.md", [*speeds(), *fallbacks()]),
        ("docs/gpu.md", list(first_contact())),
        ("docs/faults.md", list(kills())),
    ],
)
def test_figures_are_those_that_were_measured(page: str, rows: list[str]) -> None:
    """Each row as the JSON of the benchmark has it."""
    text = " ".join(pages()[page].split("\n"))
    assert len(rows) > 6
    assert [row for row in rows if row not in text] == []


# The forms of a row of the table of docs/targets.md.
FORMS = {
    "fp32, fused": "fp32",
    "INT8 static": "int8-static",
    "INT8 dynamic": "int8-dynamic",
    "INT4 weight-only": "int4",
    "FP8 E4M3": "fp8",
    "fp16": "fp16",
    "bf16": "bf16",
}


def test_a_form_is_timed_on_a_gpu_only_where_a_file_says_so() -> None:
    """The column of `torch-cuda` has the GPU and the day of each form with a time; no other target has one."""
    files = {path.stem: result(path.stem) for path in RESULTS.glob("gpu*.json")}
    timed = {
        (key.split("/")[0], key.split("/")[3]): (name, figures)
        for name, figures in files.items()
        for key, cell in figures["cells"].items()
        if "p50_ms" in cell
    }
    table = pages()["docs/targets.md"].split("\n\n")[1].splitlines()
    targets = [cell.strip(" `") for cell in table[0].strip("|").split("|")]
    for line in table[2:]:
        row, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for target, cell in zip(targets[1:], cells, strict=True):
            found = [
                of for (of_target, form), of in timed.items() if of_target == target and form.startswith(FORMS[row])
            ]
            said = {
                f"timed ({of['inventory']['gpu']['name'].removeprefix('NVIDIA ')}, {name[-10:]})" for name, of in found
            }
            assert {cell} == said if found else "timed" not in cell, (target, row)


def hostile_kinds() -> dict[str, int]:
    """Rows of the tables of hostile inputs, by kind of file as `docs/security.md` names it."""
    return {
        "`.npz` archives": len(hostile_inputs.ARCHIVES) + len(hostile_inputs.LABELS),
        "folders of `.npy` files and shards": len(hostile_inputs.FOLDERS),
        "CSV, Parquet, Arrow": len(hostile_inputs.TABLES),
        "pictures": len(hostile_inputs.PICTURES),
        "ONNX": len(hostile_inputs.MODELS),
        "job files": len(hostile_inputs.JOBS),
        "`MLmodel`": len(hostile_versions.MLMODELS),
        "`.pt2`": len(hostile_versions.PROGRAMS),
        "safetensors, `config.json`, `modules.json`, skops": len(hostile_versions.ENCODERS),
        "folders of decoders": len(hostile_versions.DECODERS),
        "`result.json`": len(hostile_versions.RESULTS),
        "`evidence.zip`, the manifest and files beside it": len(HOSTILE_BUNDLES),
    }


def test_the_table_of_hostile_files_counts_the_rows_that_run() -> None:
    kinds, page = hostile_kinds(), pages()["docs/security.md"]
    ran = [*hostile_inputs.HOSTILE, *hostile_versions.HOSTILE_VERSIONS, *HOSTILE_BUNDLES]
    assert sum(kinds.values()) == len(ran) >= 300
    table = re.findall(r"^\| ([^|]+) \| (\d+) \| [^|]+ \|$", page, re.MULTILINE)
    assert dict(table) == {kind: str(count) for kind, count in kinds.items()}
    assert f"{len(ran)} files" in page and f"{MOST_SECONDS} s of processor time" in page and f"{MOST_MB:,} MB" in page


def test_the_demo_has_one_set_of_figures() -> None:
    """Those of the runs on both kinds of processor."""
    runs = result("demo_processors")
    readme, tutorial = pages()["README.md"], pages()["docs/tutorial.md"]
    lesser = runs["avx2"]
    (own,) = (run for kind, run in runs.items() if kind != "avx2")
    assert table(own) in readme and table(own) in tutorial and table(lesser) in tutorial
    for run, texts in ((own, (readme, tutorial)), (lesser, (tutorial,))):
        (found,) = (one["confirmed"] for one in run["candidates"] if one["name"] == run["chosen"])
        figures = (
            f"{found['metric_value']:.3f}",
            f"{100 * found['metric_drop']['high']:.2f}",
            f"{found['speedup_p50']['value']:.2f}x",
        )
        for text in texts:
            prose = " ".join(text.split())
            assert all(figure in prose for figure in figures), figures
    minutes = f"{own['seconds'] // 60} min {own['seconds'] % 60} s"
    assert minutes in readme and minutes in tutorial


def test_table_of_real_models_without_vnni_matches_results() -> None:
    """Also that INT8 in OpenVINO beats its float32 on convolutional models alone, for which the lists are as they are."""
    runs = [result(name) for name in ("real_models_avx2", "real_models_avx2_openvino")]
    assert all(run["isa"] == ["avx2"] for run in runs)
    found: dict[str, list[float | None]] = {}
    for name in {name for run in runs for model in run["models"].values() for name in model["candidates"]}:
        (run,) = (run for run in runs if name in run["models"]["digits"]["candidates"])
        found[name] = [
            run["models"][model]["candidates"][name]["speedup"] for model in ("sentiment", "digits", "text lines")
        ]
    rows = re.findall(r"^\| `(\S+@\S+)` \| (\S+) \| (\S+) \| (\S+) \|$", pages()["benchmarks/README.md"], re.MULTILINE)
    told = {name: cells for name, *cells in rows if name in found}
    assert len(told) == 6
    for name, cells in told.items():
        assert cells == [f"{speed:.2f}x" if speed else NO_VALUE for speed in found[name]], name
    gains = [
        int8 / float32
        for int8, float32 in zip(found["int8-static-mse-pc@openvino"], found["fp32-fused@openvino"], strict=True)
        if int8 and float32
    ]
    assert [gain > 1 for gain in gains] == [False, True, True]


def test_sizes_of_extras_are_those_that_were_measured() -> None:
    """Each extra for users has its row; what an extra adds is the difference to `cpu` alone."""
    sizes = {extras: found["size_mb"] for extras, found in result("install_sizes")["sets"].items()}
    added = {extras.removeprefix("cpu,"): f"{size - sizes['cpu']:+,}" for extras, size in sizes.items()}
    wanted = added | {"cpu": f"{sizes['cpu']:,}", "tensorrt": "not measured"}
    page = pages()["docs/install.md"]
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| .+ \| ([^|]+) \|$", page, re.MULTILINE))
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert set(rows) == extras - {"dev", "receivers"}
    assert rows == {extra: wanted[extra] for extra in rows}
    whole = "cpu,openvino,demo"
    largest = result("install_sizes")["sets"][whole]["largest_mb"].values()
    prose = " ".join(page.split())
    assert f"`{whole}` it is {sizes[whole]:,} MB" in prose and all(f" {size}" in prose for size in largest)


def test_the_tables_of_integers_are_those_of_the_simulation() -> None:
    figures, page = result("calibration_integers"), pages()["docs/how-calibration-is-judged.md"]
    assert clean_table(figures) in page and shifted_table(figures) in page
    assert max(one["refused_or_warned"]["share"] for one in figures["clean"]) <= 0.05


def test_table_of_few_deciding_samples_matches_simulation() -> None:
    cells: dict[str, list[Any]] = {}
    for cell in result("metric_errors_rare")["cells"]:
        cells.setdefault(cell["metric"], []).append(cell)
    for metric, own in cells.items():
        worst = max(own, key=lambda cell: cell["passes"]["share"])
        row = f"| {metric} | {len(own)} | {worst['passes']['share']:.1%} | {worst['n']:,}, {worst['deciding']} |"
        assert row in pages()["benchmarks/README.md"], metric


def test_tables_of_engines_and_random_models_match_results() -> None:
    page = " ".join(pages()["benchmarks/README.md"].split("\n"))
    for row in result("engine_disagreements")["patterns"]:
        assert f"| {row['pattern']} | {row['as written']:.3f} | {row['signs in the weights']:.3f} |" in page
        assert row["signs in the weights"] < 0.02
    fuzzed = result("fuzz_passes")
    first, end = fuzzed["seeds"]
    broken = {found["seed"] for found in fuzzed["broken"]}
    assert f"Of {end - first:,} models {len(broken)} broke a promise" in page


def test_the_table_of_races_is_that_of_the_simulation() -> None:
    figures = json.loads((ROOT / "benchmarks/results/race_errors.json").read_text(encoding="utf-8"))
    page = pages()["docs/race.md"]
    for cell in figures["cells"]:
        shares = [
            f"{cell[key]['share']:.1%}"
            for key in ("best_stopped", "slower_by_3_percent", "slower_by_3_percent_in_full")
        ]
        means = [f"{cell[key]:.1f}" for key in ("evaluated_mean", "timed_mean")]
        assert " | ".join(["", cell["field"], *shares, *means]) in page, cell
    wrong = max(cell["best_stopped"]["share"] for cell in figures["cells"])
    assert wrong <= 0.02 and f"at most {wrong:.1%}" in pages()["benchmarks/README.md"]


def test_the_table_of_saved_time_is_that_of_the_runs() -> None:
    figures = json.loads((ROOT / "benchmarks/results/race_runs.json").read_text(encoding="utf-8"))
    page = pages()["benchmarks/README.md"]
    for runs in figures["models"].values():
        (found,) = (one["figures"] for one in runs)
        assert f"| {found['all']:.0f} | {found['race']:.0f} | {found['ratio']:.2f} |" in page, found
    assert f"The geometric mean of the ratios is {figures['geometric_mean']:.2f}" in page


def test_the_table_of_failed_calls_is_that_of_the_runs() -> None:
    """No call ended wrongly."""
    figures, page = result("fault_calls"), " ".join(pages()["docs/faults.md"].split("\n"))
    assert [line for line in (*table_of_calls(figures), summary(figures)) if line not in page] == []
    assert [row for row in figures["rows"] if row["outcome"] == "wrong"] == []


# Files


def test_the_files_that_contributing_names_are_there() -> None:
    named = re.findall(
        r"`((?:tests|tasks|flows|validators|infra|benchmarks|docs)/[^`<>]*)`", pages()["CONTRIBUTING.md"]
    )
    assert len(named) > 25
    assert [name for name in named if not list(ROOT.glob(name))] == []


def test_pages_that_the_code_names_are_there() -> None:
    """In errors, docstrings and comments."""
    files = [path for folder in ("flows", "tasks", "validators", "infra") for path in (ROOT / folder).rglob("*.py")]
    named = {
        name for path in files for name in re.findall(r"docs/[\w./-]+\.(?:md|json)", path.read_text(encoding="utf-8"))
    }
    ours = {name for name in named if name not in {"docs/gguf.md", "docs/OperatorKernels.md"}}
    assert len(ours) > 5
    assert [name for name in ours if not (ROOT / name).is_file() and name not in pages()] == []


def test_the_citation_is_valid_and_of_this_version() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.citation-file-format"]
    done = subprocess.run([*check, str(ROOT / "CITATION.cff")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version and f"version: {version[1]}\n" in Path(ROOT / "CITATION.cff").read_text(encoding="utf-8")
