"""The courier: delivers the jobs of topics to their callback URLs."""
