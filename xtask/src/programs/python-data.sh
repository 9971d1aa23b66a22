# Works on tables with pandas, numpy, polars and matplotlib.
# pip: pandas numpy polars matplotlib pyarrow
# options: --memory 2g

cat > t.py <<'END'
import sys; sys.stdout.reconfigure(encoding="utf-8")
import numpy as np, pandas as pd, polars as pl, matplotlib
matplotlib.use("agg"); import matplotlib.pyplot as plt
frame = pd.DataFrame({"k": list("abcab"), "v": np.arange(5.0), "t": pd.date_range("2024-01-01", periods=5, tz="Asia/Tokyo")})
print(frame.groupby("k").v.agg(["sum", "mean"])); print(frame.describe(include="all").shape, frame.t[0])
frame.to_csv("t.csv", index=False); frame.to_parquet("t.parquet"); print(pd.read_parquet("t.parquet").equals(frame))
print(pl.read_csv("t.csv").group_by("k").agg(pl.col("v").sum()).sort("k"))
print(pl.scan_parquet("t.parquet").filter(pl.col("v") > 2).select(pl.len()).collect().item())
print(np.linalg.eigvalsh([[2, 1], [1, 2]]).round(6), np.array([1.0]) / 0)
figure, axes = plt.subplots(); axes.plot([1, 2, 3]); figure.savefig("t.png", metadata={"Software": None}); plt.show()
END
python t.py; echo "status $?"; rm t.parquet
