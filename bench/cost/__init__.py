"""One model of what decoding costs: bytes and operations of a forward, the machine's rates,
measured steps, and the speed-up that follows from them.

    work.py     a network's bytes and operations, its floor, what bounds it
    rates.py    a machine's measured rates (machine.py, moments.py measure them)
    speed.py    steps and acceptance -> speed-up
    plan/       what a study needs before it starts
    predict/    what a step takes here, next to its matrix products and its floor; a run's
                speed-ups explained, here or on a machine that is not here; the search by them
    profile/    where a step's time goes
"""
