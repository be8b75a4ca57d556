"""The gateway on Ray Serve: graphs on HTTP, their stages as deployments."""
