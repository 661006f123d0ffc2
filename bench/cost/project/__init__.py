"""`bench predict hardware=NAME`: what a run's acceptance would give on a machine that is not here.

    settings.py   conf/hardware: a machine as data; which run, which model
    steps.py      the sizes of a model's target and drafter, without loading it; what a step costs
                  there, and the speed-up that follows
    papers.py     the published ratios for comparison; floors that papers' AR steps took
    table.py      the command, its tables and files

Nothing is timed and no GPU is needed: a floor is bytes over bandwidth or operations over rate.
"""
