"""
How far can a kernel forecast chaos?
====================================

Lorenz' system doubles a small error about every 0.8 units of time. A kernel on windows of four values of its three
coordinates, chosen by forecasts within 500 points, follows the truth for eight to ten Lyapunov times: the last bits of
a machine decide.
"""

# %%
# Fit on 500 points
# -----------------
import matplotlib.pyplot as plt
import numpy as np

from kfx import KernelFlowForecaster
from kfx.data.dynamics import exponent, trajectory

series = trajectory("lorenz", 1000, None, np.random.default_rng(0))
known, after = series.values[:500], series.values[500:]
chosen = KernelFlowForecaster(lags=4).fit(known)
print(f"{chosen.kernel_}, λ = {chosen.regularization_:g}, backtest error {chosen.backtest_error_:.2g} deviations")

# %%
# Forecast the next 500
# ---------------------
# ``return_std`` gives the deviations of errors, from forecasts within the known series. On a logarithmic axis the error
# grows as the Lyapunov exponent says, from the error of a single step, until it is as large as the series.
forecast, deviation = chosen.predict(500, return_std=True)
time = np.arange(500) * 0.025 * exponent("lorenz")
scale = np.linalg.norm(known.std(axis=0))
error, expected = (np.linalg.norm(each, axis=1) / scale for each in (forecast - after, deviation))
lost = time[np.argmax(error > 0.4)]
print(f"the error exceeds 0.4 deviations after {lost:.1f} Lyapunov times")
assert 7.5 < lost < 11.3

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
left.plot(time, after[:, 0], color="#b9c1cc", linewidth=3, label="truth")
left.plot(time, forecast[:, 0], color="#0072b2", linewidth=1.3, label="forecast")
left.set(xlabel="Lyapunov times", ylabel="x", ylim=(-18, 27))
left.legend(frameon=False)
right.semilogy(time, error, color="#0072b2", label="error of the forecast")
right.semilogy(time[:150], expected[:150], color="#d55e00", label="expected from backtests")
right.semilogy(time, error[:20].mean() * np.exp(time), ":", color="#2b2d42", label="growth with the exponent")
right.set(xlabel="Lyapunov times", ylabel="error / deviation", ylim=(1e-7, 10))
right.legend(frameon=False, fontsize=8)
plt.show()
