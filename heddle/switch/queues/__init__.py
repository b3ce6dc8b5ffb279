"""The queues of every port: classes, schedulers, markers, and the counters of all queues."""
