"""What happens around a step: the loop, schedules, evaluation, checkpoints, exports, callbacks, signals."""
