"""Objectives inside other trainers: a trainer for TRL, and a policy loss for verl. Neither needs Megatron or SGLang."""
