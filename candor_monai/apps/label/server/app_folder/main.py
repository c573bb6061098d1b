"""A MONAI Label app: the server looks here for one class that is an app. What it serves is in candor_monai."""

from candor_monai.apps.label.server.app import CandorLabelApp

__all__ = ["CandorLabelApp"]
