"""What people have, a shell script or a YAML file of dstack or SkyPilot, taken over as recipes and a cluster."""
