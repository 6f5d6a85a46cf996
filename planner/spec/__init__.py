"""The study file: what the user declares, checked on entry with every mistake reported at once."""

from planner.spec.loading import load_study_spec, parse_study_spec, parse_study_toml
from planner.spec.models import Axis, Domain, StudySpec, check_response, study_schema

__all__ = [
    "Axis",
    "Domain",
    "StudySpec",
    "check_response",
    "load_study_spec",
    "parse_study_spec",
    "parse_study_toml",
    "study_schema",
]
