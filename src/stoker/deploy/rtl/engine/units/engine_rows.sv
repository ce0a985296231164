// Softmax and layer norm of whole rows, a number at a time: sums, one square root and one division a row for a layer
// norm, a division a number for a softmax. A number is there three cycles after its address.
module engine_rows #(
    parameter int ADDRESS_W = 20,
    parameter int COUNT_W = 16
) (
    input  logic                 clk,
    input  logic                 rst,
    input  logic                 start,
    input  logic                 norm,             // a layer norm; else shares of a softmax
    input  logic [ADDRESS_W-1:0] a,
    input  logic [ADDRESS_W-1:0] c,
    input  logic [COUNT_W-1:0]   size,             // numbers of a row
    input  logic [COUNT_W-1:0]   rows,
    input  logic [63:0]          epsilon,
    input  logic [5:0]           root_bits,
    input  logic [5:0]           reciprocal_bits,
    input  logic [5:0]           shift,
    input  logic [4:0]           share_bits,
    output logic [ADDRESS_W-1:0] read_address,
    input  logic [17:0]          x,
    output logic                 write,
    output logic [ADDRESS_W-1:0] write_address,
    output logic [15:0]          write_data,
    output logic                 busy
);
    localparam int D_W = 36;     // of divisors and remainders
    localparam int C_W = 34;     // of size * x - total
    localparam int R_W = 48;     // of a reciprocal
    localparam int SHARE_STEPS = 17;

    typedef enum logic [3:0] {IDLE, TOTAL, SQUARES, MEAN, ROOT, INVERSE, NORMAL, ASK, SHARE, NEXT} state_t;
    state_t state;

    logic [COUNT_W:0] issued;
    logic [COUNT_W-1:0] row;
    logic [ADDRESS_W-1:0] row_address;
    logic [2:0] asked;
    logic [7:0] stages;
    logic ask, passes, pass_ends;

    assign busy = state != IDLE;
    assign passes = state == TOTAL || state == SQUARES || state == NORMAL;
    assign ask = (passes && issued != {1'b0, size}) || (state == ASK && asked == '0);
    assign pass_ends = issued == {1'b0, size} && asked == '0 && stages == '0;

    logic signed [D_W-1:0] total;
    logic signed [C_W-1:0] scaled, centred;
    logic [63:0] squares;
    logic [R_W-1:0] reciprocal;

    // A number less the mean, times itself or the reciprocal: in parts that fit multipliers of 18 x 18, six registers
    // from the number on; two more for the shift.
    localparam int PART = 17;
    localparam int PP_W = 2 * PART + 2;
    localparam int P_W = C_W + R_W;
    logic signed [R_W:0] factor;
    logic [1:0][PART:0] left_parts;
    logic [2:0][PART:0] right_parts;
    logic [1:0][2:0][PP_W-1:0] parts;
    logic signed [PP_W:0] sum_0, sum_1, sum_2, sum_3;
    logic signed [PP_W+PART:0] low_sum, high_sum;
    logic signed [P_W-1:0] product;
    logic [31:0] window;
    logic [16:0] kept;
    logic [5:0] less_one;
    logic halved, normalises;     // both long before the first number's product
    assign factor = normalises ? $signed({1'b0, reciprocal}) : (R_W+1)'(centred);
    assign left_parts = {{centred[C_W-1], centred[C_W-1:PART]}, {1'b0, centred[PART-1:0]}};
    assign right_parts = {
        {{3{factor[R_W]}}, factor[R_W:2*PART]}, {1'b0, factor[2*PART-1:PART]}, {1'b0, factor[PART-1:0]}
    };
    always_ff @(posedge clk) begin
        halved <= shift != '0;
        normalises <= state == NORMAL;
        less_one <= (shift != '0) ? shift - 1'b1 : '0;
        scaled <= C_W'($signed({1'b0, size})) * C_W'($signed(x));
        centred <= scaled - C_W'(total);
        for (int i = 0; i < 2; i++) begin
            for (int j = 0; j < 3; j++) begin
                parts[i][j] <= PP_W'($signed(left_parts[i])) * PP_W'($signed(right_parts[j]));
            end
        end
        sum_0 <= (PP_W+1)'($signed(parts[0][0]));
        sum_1 <= (PP_W+1)'($signed(parts[0][1])) + (PP_W+1)'($signed(parts[1][0]));
        sum_2 <= (PP_W+1)'($signed(parts[0][2])) + (PP_W+1)'($signed(parts[1][1]));
        sum_3 <= (PP_W+1)'($signed(parts[1][2]));
        low_sum <= (PP_W+PART+1)'(sum_0) + ((PP_W+PART+1)'(sum_1) <<< PART);
        high_sum <= (PP_W+PART+1)'(sum_2) + ((PP_W+PART+1)'(sum_3) <<< PART);
        product <= P_W'(low_sum) + (P_W'(high_sum) <<< (2 * PART));
        window <= 32'(product >>> {less_one[5:4], 4'd0});
        kept <= 17'(window >> less_one[3:0]);
    end

    // One division or root at a time: a bit of the quotient, or of the root, a cycle.
    logic [63:0] number;
    logic [D_W-1:0] rest, divisor, trial, taken;
    logic [33:0] root;
    logic [6:0] left;
    logic fits;
    assign trial = (state == ROOT) ? {rest[D_W-3:0], number[63:62]} : {rest[D_W-2:0], number[63]};
    assign taken = (state == ROOT) ? {root, 2'b01} : divisor;
    assign fits = trial >= taken;

    // A quotient's last bit is there a cycle before it is held against the largest share, and written.
    logic [33:0] shares;
    logic [SHARE_STEPS-1:0] share_top;
    logic shared;
    assign shares = (34'(x[15:0]) << share_bits) + 34'(total[D_W-1:1]);

    always_ff @(posedge clk) begin
        asked <= rst ? '0 : {asked[1:0], ask};
        stages <= rst ? '0 : {stages[6:0], asked[2] && (state == SQUARES || state == NORMAL)};
        write <= 1'b0;
        share_top <= (SHARE_STEPS'(1) << share_bits) - 1'b1;
        shared <= !rst && state == SHARE && left == '0;
        if (shared) begin
            write <= 1'b1;
            write_data <= (number[SHARE_STEPS-1:0] > share_top) ? share_top[15:0] : number[15:0];
        end
        if (write) write_address <= write_address + 1'b1;
        if (ask) begin
            issued <= issued + 1'b1;
            read_address <= read_address + 1'b1;
        end
        if (state == TOTAL && asked[2]) total <= total + D_W'($signed(x));
        if (state == SQUARES && stages[5]) squares <= squares + product[63:0];
        if (state == NORMAL && stages[7]) begin
            write <= 1'b1;
            // Half a step is a one below the point.
            write_data <= halved ? kept[16:1] + 16'(kept[0]) : kept[15:0];
        end
        if (state == MEAN || state == INVERSE || state == SHARE || state == ROOT) begin
            rest <= fits ? trial - taken : trial;
            number <= (state == ROOT) ? {number[61:0], 2'b00} : {number[62:0], fits};
            if (state == ROOT) root <= {root[32:0], fits};
            left <= left - 1'b1;
        end

        case (state)
            IDLE: if (start) begin
                row_address <= a;
                write_address <= c;
                row <= rows;
                read_address <= a;
                issued <= '0;
                total <= '0;
                state <= TOTAL;
            end
            TOTAL: if (pass_ends) begin
                read_address <= row_address;
                issued <= '0;
                squares <= epsilon;
                state <= norm ? SQUARES : ASK;
            end
            SQUARES: if (pass_ends) begin
                number <= squares << {root_bits, 1'b0};
                divisor <= D_W'(size);
                rest <= '0;
                left <= 7'd63;
                state <= MEAN;
            end
            MEAN: if (left == '0) begin
                rest <= '0;
                root <= '0;
                left <= 7'd31;
                state <= ROOT;
            end
            ROOT: if (left == '0) begin
                divisor <= ({root[32:0], fits} == '0) ? D_W'(1) : D_W'({root[32:0], fits});
                number <= 64'd1 << reciprocal_bits;
                rest <= '0;
                left <= 7'd63;
                state <= INVERSE;
            end
            INVERSE: if (left == '0) begin
                reciprocal <= {number[R_W-2:0], fits};
                read_address <= row_address;
                issued <= '0;
                state <= NORMAL;
            end
            NORMAL: if (pass_ends) state <= NEXT;
            ASK: if (asked[2]) begin
                number <= {shares[SHARE_STEPS-1:0], 47'd0};
                rest <= D_W'(shares[33:SHARE_STEPS]);
                divisor <= total;
                left <= 7'(SHARE_STEPS - 1);
                state <= SHARE;
            end
            SHARE: if (left == '0) state <= (issued == {1'b0, size}) ? NEXT : ASK;
            default: begin
                row_address <= row_address + ADDRESS_W'(size);
                read_address <= row_address + ADDRESS_W'(size);
                row <= row - 1'b1;
                issued <= '0;
                total <= '0;
                state <= (row == COUNT_W'(1)) ? IDLE : TOTAL;
            end
        endcase
        if (rst) state <= IDLE;
    end

    logic unused;
    assign unused = &{1'b0, share_top, rest, product, low_sum, high_sum};
endmodule
