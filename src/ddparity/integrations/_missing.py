"""What is said where a package that only one integration needs is not installed."""

from ddparity._errors import DependencyMissing


def missing(package: str, error: ImportError) -> DependencyMissing:
    """Return the error for a framework that cannot be imported."""
    return DependencyMissing(
        f"This needs {package}, which cannot be imported here ({error}). Install it: pip install {package}"
    )
